// A real OpenID provider (npm oidc-provider) for test_oidc_provider.py: node oidc_provider.mjs FOLDER PORT RESOURCE
// FOLDER has node_modules. Prints "ready" when it listens. GET /rotate signs with a new key from then on.
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';
import { createPublicKey, createVerify, generateKeyPairSync } from 'node:crypto';
import http from 'node:http';

const [folder, port, resource] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${folder}/x.js`));
const { Provider } = await import(pathToFileURL(require.resolve('oidc-provider')));
const EXCHANGE = 'urn:ietf:params:oauth:grant-type:token-exchange';
const issuer = `http://127.0.0.1:${port}`;
let count = 0;
const keys = [];

function addKey() {
  count += 1;
  const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
  keys.unshift({ ...privateKey.export({ format: 'jwk' }), use: 'sig', alg: 'RS256', kid: `key-${count}` });
}

function create() {
  const provider = new Provider(issuer, {
    jwks: { keys },
    clients: [
      { client_id: 'eng-bot', client_secret: 'secret', grant_types: ['client_credentials'], redirect_uris: [], response_types: [] },
      { client_id: 'gateway', client_secret: 'secret', grant_types: [EXCHANGE], redirect_uris: [], response_types: [] },
    ],
    scopes: ['openid', 'offline_access', 'tools:read', 'tools:write'],
    clientBasedCORS: () => true,
    claims: { openid: ['sub'], groups: ['groups'] },
    features: {
      devInteractions: { enabled: true },
      clientCredentials: { enabled: true },
      introspection: { enabled: true, allowedPolicy: () => true },
      revocation: { enabled: true, allowedPolicy: () => true },
      registration: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => resource,
        useGrantedResource: () => true,
        getResourceServerInfo: (ctx, indicator) => ({
          scope: 'tools:read tools:write',
          audience: indicator.replace('#opaque', ''),
          accessTokenTTL: 600,
          accessTokenFormat: ctx.oidc.params?.scope?.includes('tools:write') ? 'opaque' : 'jwt',
          jwt: { sign: { alg: 'RS256' } },
        }),
      },
    },
    extraTokenClaims: (ctx, token) => ({
      groups: [token.clientId === 'eng-bot' || token.accountId === 'alice' ? 'eng' : 'sales'],
      ...(token.kind === 'ClientCredentials' ? { sub: token.clientId } : {}), // for introspection, which has none then
    }),
    findAccount: (ctx, id) => ({ accountId: id, claims: () => ({ sub: id, groups: ['eng'] }) }),
    cookies: { keys: ['for a test only'] },
    ttl: { Session: 600, Grant: 600, Interaction: 600 },
    pkce: { required: () => true },
  });
  provider.proxy = true;
  // RFC 8693: the subject token must be one of ours, for the gateway; the new one is for `resource`, and says who acts.
  provider.registerGrantType(EXCHANGE, async (ctx) => {
    const { subject_token: given, resource: target, scope } = ctx.oidc.params;
    const claims = verify(given);
    if (!claims || claims.iss !== issuer || claims.aud !== resource || claims.exp < Date.now() / 1000) {
      ctx.status = 400;
      ctx.body = { error: 'invalid_grant', error_description: `not exchanged: ${given}` };
      return;
    }
    const token = new provider.AccessToken({ accountId: claims.sub, client: ctx.oidc.client, scope });
    token.resourceServer = new provider.ResourceServer(target, {
      scope, audience: target, accessTokenTTL: 600, accessTokenFormat: 'jwt', jwt: { sign: { alg: 'RS256' } },
    });
    const access = await token.save();
    ctx.body = {
      access_token: access, token_type: 'Bearer', expires_in: token.expiration, scope,
      issued_token_type: 'urn:ietf:params:oauth:token-type:access_token',
    };
  }, ['subject_token', 'subject_token_type', 'requested_token_type', 'audience', 'resource', 'scope'], ['audience', 'resource']);
  return provider.callback();
}

function verify(token) {
  const [head, body, signature] = String(token).split('.');
  try {
    const { kid } = JSON.parse(Buffer.from(head, 'base64url'));
    const { kty, n, e } = keys.find((each) => each.kid === kid);
    const key = createPublicKey({ key: { kty, n, e }, format: 'jwk' });
    const good = createVerify('RSA-SHA256').update(`${head}.${body}`).verify(key, signature, 'base64url');
    return good ? JSON.parse(Buffer.from(body, 'base64url')) : undefined;
  } catch {
    return undefined;
  }
}

addKey();
let handle = create();
const server = http.createServer((request, response) => {
  if (request.url === '/rotate') {
    addKey();
    handle = create();
    response.end('rotated');
  } else {
    handle(request, response);
  }
});
server.listen(Number(port), '127.0.0.1', () => console.log('ready'));

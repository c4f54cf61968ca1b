// A real OAuth 2 server (npm oauth2-mock-server) for test_plain_provider.py: node plain_provider.mjs FOLDER PORT RESOURCE
// FOLDER has node_modules. Its access tokens have the type JWT. Prints "ready" when it listens.
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [folder, port, resource] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${folder}/x.js`));
const { OAuth2Server } = await import(pathToFileURL(require.resolve('oauth2-mock-server')));
const server = new OAuth2Server();
await server.issuer.keys.generate('RS256');
server.service.on('beforeTokenSigning', (token, request) => {
  token.payload.aud = request.body.audience ?? resource;
  token.payload.sub ??= 'alice';
  token.payload.groups = ['eng'];
});
await server.start(Number(port), '127.0.0.1');
server.issuer.url = `http://127.0.0.1:${port}`;
console.log('ready');

"""Amazon Bedrock's models. Their client, boto3, sends each request once, and only to checked addresses."""

from __future__ import annotations

import os
from typing import Any, Final

import boto3
from botocore.awsrequest import AWSHTTPConnectionPool, AWSHTTPSConnectionPool
from botocore.config import Config
from botocore.exceptions import BotoCoreError
from pydantic_ai.exceptions import UserError
from pydantic_ai.providers import Provider
from pydantic_ai.providers.bedrock import BedrockProvider  # names the missing package
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from toolway.agents.model_access import ModelAccess
from toolway.agents.settings import AgentSettings
from toolway.network.policy import NetworkPolicy
from toolway.network.resolver import resolve_host_blocking

#: pydantic-ai turns off the retries of an SDK for one request, but not those of boto3.
ONE_ATTEMPT: Final = {"total_max_attempts": 1, "mode": "standard"}
READ_TIMEOUT_S: Final = 300.0  # as pydantic-ai has it
CONNECT_TIMEOUT_S: Final = 60.0


def create_bedrock(settings: AgentSettings, access: ModelAccess) -> Provider[Any]:
    """Return the provider for Amazon Bedrock. boto3 finds the region and credentials.

    Raises `AgentError` if the settings name an address that must not receive them.
    """
    config = Config(
        retries=ONE_ATTEMPT,
        read_timeout=float(os.environ.get("AWS_READ_TIMEOUT", READ_TIMEOUT_S)),
        connect_timeout=float(os.environ.get("AWS_CONNECT_TIMEOUT", CONNECT_TIMEOUT_S)),
    )
    try:
        session = boto3.Session()
        client = session.client("bedrock-runtime", endpoint_url=settings.base_url, config=config)

        def own_url() -> str:
            if settings.base_url is None:
                return str(client.meta.endpoint_url)
            return str(session.client("bedrock-runtime", config=config).meta.endpoint_url)

        _check_connections(client, access.policy_for(settings, own_url))
        if session.get_credentials() is None and not os.environ.get("AWS_BEARER_TOKEN_BEDROCK"):
            raise UserError("no AWS credentials: set AWS_PROFILE, AWS_ACCESS_KEY_ID, or a bearer token")
    except BotoCoreError as exc:
        raise UserError(f"{exc}: set AWS_REGION or AWS_DEFAULT_REGION") from exc
    return BedrockProvider(bedrock_client=client)


def _check_connections(client: Any, policy: NetworkPolicy) -> None:
    """Make a boto3 client connect only to addresses that the policy allows, as they were resolved for the check.

    A proxy from the environment is used as it is, as in every other client.
    """

    def checked(pool: Any) -> Any:
        class Connection(pool.ConnectionCls):  # type: ignore[misc] # a class of urllib3
            _dns_host: str

            def _new_conn(self) -> Any:
                if self.proxy is not None:
                    return super()._new_conn()
                name: str = self._dns_host
                found = resolve_host_blocking(self.host, self.port, policy)
                try:
                    for number, each in enumerate(found, 1):
                        self._dns_host = each.host  # TLS verifies the name, which is back by then
                        try:
                            return super()._new_conn()
                        except (NewConnectionError, ConnectTimeoutError):
                            if number == len(found):
                                raise
                finally:
                    self._dns_host = name

        return type("CheckedPool", (pool,), {"ConnectionCls": Connection})

    session = client._endpoint.http_session
    pools = {"http": checked(AWSHTTPConnectionPool), "https": checked(AWSHTTPSConnectionPool)}
    session._pool_classes_by_scheme = pools  # of proxies
    session._manager.pool_classes_by_scheme = pools

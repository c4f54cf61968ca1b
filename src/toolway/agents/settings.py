"""Settings of an agent. They are defined with the configuration, because files may describe agents."""

from __future__ import annotations

from toolway.config.agent_settings import AgentSettings as AgentSettings
from toolway.config.agent_settings import ApprovalPolicy as ApprovalPolicy
from toolway.config.agent_settings import Budget as Budget
from toolway.config.agent_settings import ConfiguredAgent as ConfiguredAgent
from toolway.config.agent_settings import matches_any as matches_any
from toolway.config.agent_settings import may_match as may_match

"""Where secrets are kept, what looks like one, and what was one in this process. Nothing heavy is loaded before it is
needed."""

from toolway.secrets.known import hide, remember
from toolway.secrets.likely import is_secret_like
from toolway.secrets.opening import open_store
from toolway.secrets.store import SecretsError, Store, check_name

__all__ = ["SecretsError", "Store", "check_name", "hide", "is_secret_like", "open_store", "remember"]

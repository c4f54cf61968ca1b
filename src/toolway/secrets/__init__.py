"""Secret stores, detection of likely secrets, and masking of known secrets in text.

The encryption and keychain libraries are loaded on first use.
"""

from toolway.secrets.detection import is_harmless_value, looks_like_secret, mask_secrets, remember_secret
from toolway.secrets.secrets_error import SecretsError
from toolway.secrets.store import SecretStore, check_secret_name, open_store

__all__ = [
    "SecretStore",
    "SecretsError",
    "check_secret_name",
    "is_harmless_value",
    "looks_like_secret",
    "mask_secrets",
    "open_store",
    "remember_secret",
]

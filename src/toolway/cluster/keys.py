"""Key derivation (HKDF-SHA256): a tenant key from the cluster key, and one key per purpose from that.

A node only needs its tenant's key. With nothing else, it can neither issue call tokens for another tenant nor read or
sign that tenant's rows. Only making tenant keys and taking over a database (`toolway cluster trust`) need the cluster
key itself.
"""

from __future__ import annotations

from typing import Final

KEY_BYTES: Final = 32
TENANT_KEY_PREFIX: Final = "tenant:"


def derive_tenant_key(cluster_key: bytes, tenant: str) -> bytes:
    """Return a tenant's key, which does not reveal the cluster key."""
    return _derive(cluster_key, f"toolway tenant {tenant}")


def derive_key(tenant_key: bytes, purpose: str) -> bytes:
    """Return the key for one purpose, such as "row mac". It reveals no other key."""
    return _derive(tenant_key, f"toolway purpose {purpose}")


def format_tenant_key(cluster_key: bytes, tenant: str) -> str:
    """Return a tenant's key as text for `--cluster-key-file`: `tenant:NAME:HEX`."""
    return f"{TENANT_KEY_PREFIX}{tenant}:{derive_tenant_key(cluster_key, tenant).hex()}"


def _derive(key: bytes, label: str) -> bytes:
    # Imported here, because `toolway cluster keygen` derives nothing and should start fast.
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), KEY_BYTES, salt=None, info=label.encode()).derive(key)

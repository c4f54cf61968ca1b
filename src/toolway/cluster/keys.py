"""Derivation of keys: a key for each tenant from the cluster key, and a key for each purpose from that (HKDF-SHA256).

A node works with the key of its tenant only. So a node that was given nothing else can neither make call tokens for
another tenant nor open or sign its rows in the database. The cluster key itself is needed to make keys of tenants, and
to take over a database (`toolway cluster trust`).
"""

from __future__ import annotations

from typing import Final

KEY_BYTES: Final = 32
TENANT_KEY_PREFIX: Final = "tenant:"


def derive_tenant_key(cluster_key: bytes, tenant: str) -> bytes:
    """Return the key of one tenant. The cluster key cannot be computed from it."""
    return _derive(cluster_key, f"toolway tenant {tenant}")


def derive_key(tenant_key: bytes, purpose: str) -> bytes:
    """Return the key for one purpose, such as "row mac". From the key of one purpose, no other key can be computed."""
    return _derive(tenant_key, f"toolway purpose {purpose}")


def format_tenant_key(cluster_key: bytes, tenant: str) -> str:
    """Return the key of a tenant as text for `--cluster-key-file`: `tenant:NAME:HEX`."""
    return f"{TENANT_KEY_PREFIX}{tenant}:{derive_tenant_key(cluster_key, tenant).hex()}"


def _derive(key: bytes, label: str) -> bytes:
    # Imported here, because `toolway cluster keygen` derives nothing and should start fast.
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), KEY_BYTES, salt=None, info=label.encode()).derive(key)

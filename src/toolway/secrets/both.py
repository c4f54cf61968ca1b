"""A keychain and a sealed file as one store: a new secret goes to the first that there is, an old one is found."""

from __future__ import annotations

from toolway.secrets.store import SecretsError, Store


class Both:
    """`elsewhere` are the names of secrets that lie in a keychain, be it one that does not answer here."""

    def __init__(self, keychain: Store | None, file: Store, elsewhere: frozenset[str]) -> None:
        self._stores = [store for store in (keychain, file) if store is not None]
        self._elsewhere = elsewhere if keychain is None else frozenset()
        self.where = self._stores[0].where

    def get(self, name: str) -> str | None:
        for store in self._stores:
            value = store.get(name)
            if value is not None:
                return value
        if name in self._elsewhere:
            raise SecretsError(
                f"the secret {name} lies in the keychain of the system",
                evidence="no keychain answers here: there is no desktop session",
                fix=f"toolway secrets set {name}",
            )
        return None

    def set(self, name: str, value: str) -> None:
        self._stores[0].set(name, value)
        for store in self._stores[1:]:
            store.delete(name)

    def delete(self, name: str) -> bool:
        there = [store.delete(name) for store in self._stores]
        return any(there)

    def names(self) -> list[str]:
        return sorted({name for store in self._stores for name in store.names()})

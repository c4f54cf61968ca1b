"""Ed25519 keys that sign exports and checkpoints of an audit log.

    file      a private key in the state folder, created once
    cluster   a key derived from the tenant's key, so all nodes sign with the same one
    command   `"signer": "command:…"`: a program of an HSM or KMS. It gets the bytes on stdin and writes the signature

The signature of a command is checked with the public key (`signerKey`) before it is used.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import shlex
import subprocess
from pathlib import Path
from typing import Final, Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from toolway.config.settings import AuditSettings
from toolway.errors import ConfigError
from toolway.secrets.detection import mask_secrets
from toolway.secrets.encrypted_file import read_or_create

COMMAND_PREFIX: Final = "command:"
SIGN_TIMEOUT_S: Final = 10.0
SIGNATURE_BYTES: Final = 64
MAX_KEY_BYTES: Final = 16 * 1024  # of a PEM file
_MAX_SHOWN_CHARS: Final = 300  # of what a command wrote to stderr
NO_KEY_CODE: Final = "E-AUDIT-KEY"


class PublicKey:
    """Public half of a signing key: checks signatures, and has an id to name it by."""

    def __init__(self, key: Ed25519PublicKey) -> None:
        self._key = key
        raw = key.public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.id = hashlib.sha256(raw).hexdigest()[:32]

    @classmethod
    def from_pem(cls, data: bytes) -> PublicKey:
        """Read a PEM file. Raises `ValueError` if it is not an Ed25519 public key."""
        try:
            found = load_pem_public_key(data)
        except Exception as exc:  # the library raises several kinds, and some only for other kinds of keys
            raise ValueError(f"not a public key in PEM form: {type(exc).__name__}") from None
        if not isinstance(found, Ed25519PublicKey):
            raise ValueError("not an Ed25519 key")
        return cls(found)

    def pem(self) -> str:
        return self._key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    def verify(self, signature: bytes, message: bytes) -> bool:
        """Return True if the signature of the message is valid."""
        try:
            self._key.verify(signature, message)
        except InvalidSignature:
            return False
        return True


class Signer(Protocol):
    """Signs messages with one Ed25519 key."""

    public: PublicKey

    def sign(self, message: bytes, timeout: float = SIGN_TIMEOUT_S) -> bytes:
        """Return the signature of `message`, 64 bytes. May block, because a signer may be an external program.

        Raises `ConfigError` (`E-AUDIT-KEY`) if the message cannot be signed.
        """
        ...


class KeySigner:
    """Signer with a private key in memory."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = PublicKey(key.public_key())

    def sign(self, message: bytes, timeout: float = SIGN_TIMEOUT_S) -> bytes:
        return self._key.sign(message)


class CommandSigner:
    """Signer that runs a command. It gets the message on stdin, and writes the signature: raw, base64 or hex."""

    def __init__(self, command: str, public: PublicKey) -> None:
        self._words = shlex.split(command)
        self.public = public

    def sign(self, message: bytes, timeout: float = SIGN_TIMEOUT_S) -> bytes:
        try:
            done = subprocess.run(self._words, input=message, capture_output=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            raise _command_error(f"it did not end within {timeout:g} s") from None
        except OSError as exc:
            raise _command_error(f"it cannot be started: {exc.strerror}") from None
        if done.returncode:
            shown = mask_secrets(done.stderr[-4096:].decode(errors="replace").strip())[-_MAX_SHOWN_CHARS:]
            raise _command_error(f"it ended with code {done.returncode}: {shown}")
        signature = _decode_signature(done.stdout)
        if signature is None:
            raise _command_error(f"its {len(done.stdout)} bytes of output are not an Ed25519 signature")
        if not self.public.verify(signature, message):
            raise _command_error("its signature does not match the public key in toolway.audit.signerKey")
        return signature


def _decode_signature(output: bytes) -> bytes | None:
    """Return the signature in the output of a command: 64 raw bytes, or their base64 or hex text."""
    if len(output) == SIGNATURE_BYTES:
        return output
    text = output.strip()
    try:
        found = bytes.fromhex(text.decode()) if len(text) == 2 * SIGNATURE_BYTES else base64.b64decode(text, None, True)
    except (ValueError, binascii.Error):
        return None
    return found if len(found) == SIGNATURE_BYTES else None


def load_signer(settings: AuditSettings, *, create: bool = False) -> Signer:
    """Return the signer of an audit log; with `create`, a missing private key is created.

    Raises `ConfigError` (`E-AUDIT-KEY`) if no key is usable.
    """
    if settings.signer_held:
        raise ConfigError(
            "the audit log's signer needs your review",
            detail="toolway.audit.signer was added or changed by something other than toolway",
            hint="review it: toolway trust toolway.audit.signer",
            code=NO_KEY_CODE,
        )
    if settings.signer:
        return CommandSigner(settings.signer.removeprefix(COMMAND_PREFIX), _read_public_key(settings.signer_key))
    if settings.digest_key:
        seed = hmac.digest(settings.digest_key, b"toolway audit signing", "sha256")
        return KeySigner(Ed25519PrivateKey.from_private_bytes(seed))
    file = signing_key_file(settings)
    try:
        data = read_or_create(file, _new_private_key) if create else file.read_bytes()
        found = load_pem_private_key(data, None)
    except FileNotFoundError:
        raise _no_key_error(file, "the file does not exist") from None
    except OSError as exc:
        raise _no_key_error(file, exc.strerror or type(exc).__name__) from None
    except Exception as exc:  # the library raises several kinds
        raise _no_key_error(file, f"not a private key in PEM form: {type(exc).__name__}") from None
    if not isinstance(found, Ed25519PrivateKey):
        raise _no_key_error(file, "not an Ed25519 key")
    return KeySigner(found)


def _new_private_key() -> bytes:
    return Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def signing_key_file(settings: AuditSettings) -> Path:
    """Return the path of the private key: in the state folder of a gateway, or next to the log of a program."""
    return Path(settings.signing_key_file or f"{settings.file or 'audit'}.signing.pem")


def load_verifier(settings: AuditSettings) -> PublicKey | None:
    """Return the public key that checks signatures of an audit log; None if there is none.

    Does not run a signer command.
    """
    try:
        if settings.signer:
            return _read_public_key(settings.signer_key)
        return load_signer(settings).public
    except ConfigError:
        return None


def read_public_key(path: str | os.PathLike[str]) -> PublicKey:
    """Read a public key in PEM form. Raises `ValueError` or `OSError`."""
    with open(path, "rb") as file:
        return PublicKey.from_pem(file.read(MAX_KEY_BYTES))


def _read_public_key(path: str) -> PublicKey:
    try:
        return read_public_key(path)
    except (OSError, ValueError) as exc:
        raise ConfigError(
            f"cannot read the signer's public key: {path}",
            detail=str(exc),
            hint="put the public key of the HSM or KMS there, in PEM form, or fix toolway.audit.signerKey",
            code=NO_KEY_CODE,
        ) from None


def _no_key_error(file: Path, detail: str) -> ConfigError:
    return ConfigError(
        f"no key to sign with: {file}",
        detail=detail,
        hint="create it: toolway audit key. A gateway with an audit log creates one a minute after it starts",
        code=NO_KEY_CODE,
    )


def _command_error(detail: str) -> ConfigError:
    return ConfigError(
        "the audit log's signer failed",
        detail=detail,
        hint="test the toolway.audit.signer command by hand: it gets bytes on stdin and prints an Ed25519 signature",
        code=NO_KEY_CODE,
    )

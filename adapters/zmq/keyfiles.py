"""Key files: ``NAME.key_secret`` for oneself, ``NAME.key`` for everybody else.

The format is that of pyzmq's certificates (``zmq.auth``), so either library reads the other's; the
files are written by us, for pyzmq leaves a secret readable by whoever the umask lets.
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import zmq

from stagelink.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

PUBLIC, SECRET = ".key", ".key_secret"
LONGEST_FILE = 16 << 10
"""Bytes of a key file at most; ours have some 300."""

READERS, WRITERS = 0o077, 0o022
"""Bits of a mode that let others read or write."""

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
_FIELD = r'^\s*{}\s*=\s*"([0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{{}}@%$#]{{40}})"\s*$'
_PUBLIC = re.compile(_FIELD.format("public-key"), re.MULTILINE)
_SECRET = re.compile(_FIELD.format("secret-key"), re.MULTILINE)
_HEAD = '# {}\nmetadata\n    name = "{}"\ncurve\n    public-key = "{}"\n'
_NOTE_FOR_PEERS = "a public key of stagelink: copy it into the key directory of every peer"
_NOTE_OF_OURS = "a secret key of stagelink: it stays here, readable by its owner alone"


class KeyPair(NamedTuple):
    """A CURVE key pair, both halves as 40 characters of Z85."""

    public: bytes
    secret: bytes

    def __repr__(self) -> str:
        """Without the secret: it must not come into a log or a traceback."""
        return f"KeyPair(public={self.public!r})"


class MadeKeys(NamedTuple):
    """What :func:`make_keys` has written; ``key`` is the public one."""

    name: str
    secret: Path
    public: Path
    key: str


def make_keys(directory: Path, name: str) -> MadeKeys:
    """Write a new key pair into *directory*, which is made if it is not there.

    Raises:
        ConfigError: *name* is no file name, a file of that name is there, the directory holds a
            secret already or cannot be written to, or this ZeroMQ has no CURVE.
    """
    require_curve()
    if not NAME.fullmatch(name):
        msg = f"the name {name!r:.100} of a key is not 1 to 64 letters, digits and '._-'"
        raise ConfigError(msg, remedy="name it as the stage that will use it, for example talker")
    secret, public = directory / f"{name}{SECRET}", directory / f"{name}{PUBLIC}"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        others = sorted(directory.glob(f"*{SECRET}"))
    except OSError as error:
        _refuse(directory, f"cannot be used: {error.strerror}", "choose another directory", error)
    if others:
        what = "holds a secret key already" if others[0] != secret else "is there already"
        where = directory if others[0] != secret else secret
        _refuse(where, what, "choose another directory, or remove the key that nobody uses")
    pair = KeyPair(*zmq.curve_keypair())
    text = _HEAD.format(_NOTE_OF_OURS, name, pair.public.decode())
    _write(public, _HEAD.format(_NOTE_FOR_PEERS, name, pair.public.decode()), 0o644)
    try:
        _write(secret, f'{text}    secret-key = "{pair.secret.decode()}"\n', 0o600)
    except BaseException:
        public.unlink()
        raise
    return MadeKeys(name, secret, public, pair.public.decode())


def read_secret(path: Path) -> KeyPair:
    """The pair in a secret file.

    Raises:
        ConfigError: it cannot be read, others can read it, or what it holds is no key pair.
    """
    text = _read(path, READERS, f"chmod 600 {path}")
    public, secret = _PUBLIC.search(text), _SECRET.search(text)
    if secret is None:
        _refuse(path, "holds no secret key", "make it anew with `stagelink keygen`")
    pair = KeyPair(zmq.curve_public(secret[1].encode()), secret[1].encode())
    if public is None or public[1].encode() != pair.public:
        what = "holds two keys that are no pair"
        _refuse(path, what, "make it anew with `stagelink keygen`, and copy the new public file")
    return pair


def read_public(path: Path) -> bytes:
    """The key in a public file, as 40 characters of Z85.

    Raises:
        ConfigError: it cannot be read, others can change it, or it holds no key.
    """
    text = _read(path, WRITERS, f"chmod go-w {path}")
    found = _PUBLIC.search(text)
    if found is None:
        _refuse(path, "holds no public key", "copy it from the peer again: its NAME.key")
    if _SECRET.search(text):
        what = "holds a secret key, which only its owner should have"
        _refuse(path, what, "delete it, make that peer new keys, and copy its NAME.key instead")
    return found[1].encode()


def check_directory(directory: Path) -> None:
    """Whoever may write here decides who is let in: it must be the owner alone.

    Raises:
        ConfigError: it is no directory, or others may write to it.
    """
    try:
        found = directory.stat()
    except OSError as error:
        remedy = f"make keys with `stagelink keygen {directory}`"
        _refuse(directory, f"cannot be read: {error.strerror}", remedy, error)
    if not stat.S_ISDIR(found.st_mode):
        _refuse(directory, "is no directory", "name the directory that holds the key files")
    if found.st_mode & WRITERS:
        what = f"can be changed by others (mode {stat.S_IMODE(found.st_mode):04o})"
        _refuse(directory, what, f"chmod go-w {directory}")


def require_curve() -> None:
    """Refuse a ZeroMQ that was built without CURVE.

    Raises:
        ConfigError: it was.
    """
    if not zmq.has("curve"):
        msg = f"this ZeroMQ ({zmq.zmq_version()}) was built without CURVE"
        raise ConfigError(msg, remedy="install pyzmq from a wheel, or libzmq with libsodium")


def _read(path: Path, forbidden: int, remedy: str) -> str:
    """The text of a key file, whose mode is that of the very file that was read."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            data = file.read(LONGEST_FILE + 1)
    except OSError as error:
        _refuse(path, f"cannot be read: {error.strerror}", "check its owner and mode", error)
    if found.st_mode & forbidden:
        doing = "changed" if forbidden == WRITERS else "read"
        what = f"can be {doing} by others (mode {stat.S_IMODE(found.st_mode):04o})"
        _refuse(path, what, remedy)
    if found.st_uid not in {os.geteuid(), 0}:
        what = f"belongs to user {found.st_uid}, and we are {os.geteuid()}"
        _refuse(path, what, "make it your own with chown, or copy it")
    if len(data) > LONGEST_FILE:
        _refuse(path, f"has more than {LONGEST_FILE} bytes", "it is no key file: remove it")
    return data.decode("ascii", "replace")


def _write(path: Path, text: str, mode: int) -> None:
    """A new file of exactly that *mode*, or none."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, mode)
    except FileExistsError as error:
        remedy = "choose another name or directory, or remove it if nobody uses it"
        _refuse(path, "is there already", remedy, error)
    except OSError as error:
        _refuse(path, f"cannot be written: {error.strerror}", "choose another directory", error)
    with open(descriptor, "w", encoding="ascii") as file:
        os.fchmod(descriptor, mode)  # whatever the umask
        file.write(text)


def _refuse(path: Path, what: str, remedy: str, cause: OSError | None = None) -> NoReturn:
    msg = f"{path} {what}"
    raise ConfigError(msg, remedy=remedy) from cause

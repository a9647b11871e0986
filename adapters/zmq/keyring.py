"""Whose keys we have: our own pair, whom we let in, and whom we expect where we dial."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from zmq.utils import z85

from stagelink.adapters.zmq.keyfiles import (
    PUBLIC,
    SECRET,
    check_directory,
    read_public,
    read_secret,
    require_curve,
)  # fmt: skip
from stagelink.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagelink.adapters.zmq.keyfiles import KeyPair

MOST_KEYS = 4096


class Keyring:
    """The keys of one connector, as they were when it was opened.

    Args:
        own: our pair.
        peers: public keys by name; who holds one of these, or ours, is let in.
        stages: for each address to dial, the name whose key its sender must have.
        server: the name of the key at every address; empty: by stage, or the only peer there is.
        name: of our own pair.
    """

    def __init__(
        self,
        own: KeyPair,
        peers: Mapping[str, bytes],
        stages: Mapping[str, str] | None = None,
        server: str = "",
        name: str = "",
    ) -> None:
        self.own, self.name = own, name
        self._peers = dict(peers)
        self._stages = dict(stages or {})
        self._server = server
        self._ours: set[str] = set()
        self.allowed = frozenset(z85.decode(key) for key in (own.public, *self._peers.values()))
        if server and server not in self._peers:
            whose = f"{server!r}, which server_key names"
            raise self._unknown(whose)

    def key_for(self, address: str) -> bytes:
        """The key that whoever listens at *address* must prove to have.

        It is the one that ``server_key`` names, else that of the stage at *address*, else that of
        the only peer; where there are no peers at all, everybody has our own.

        Raises:
            ConfigError: none of these says which.
        """
        if address in self._ours:
            return self.own.public
        stage = self._stages.get(address, "")
        found = self._peers.get(self._server or stage)
        if found is not None:
            return found
        others = set(self._peers.values()) - {self.own.public}
        if len(others) <= 1:
            return next(iter(others), self.own.public)
        whose = f"stage {stage!r} at {address}" if stage else f"the sender at {address}"
        raise self._unknown(whose)

    def we_are_at(self, address: str) -> None:
        """Expect our own key at *address*."""
        self._ours.add(address)

    def _unknown(self, whose: str) -> ConfigError:
        known = ", ".join(sorted(self._peers)[:20]) or "none"
        msg = f"there is no public key of {whose}; at hand: {known}"
        remedy = f"copy its NAME{PUBLIC} into the key directory, or name another in server_key"
        return ConfigError(msg, remedy=remedy)


def read_keyring(
    directory: str | Path, stages: Mapping[str, str] | None = None, server: str = ""
) -> Keyring:
    """The keys in *directory*: one ``NAME.key_secret``, and a ``NAME.key`` for each peer.

    *stages* and *server* are as in :class:`Keyring`.

    Raises:
        ConfigError: names the file, what is wrong with it and the command that puts it right.
    """
    require_curve()
    folder = Path(directory).expanduser()
    check_directory(folder)
    secrets = sorted(folder.glob(f"*{SECRET}"))
    publics = sorted(folder.glob(f"*{PUBLIC}"))
    if len(secrets) != 1:
        said = ", ".join(path.name for path in secrets[:3]) or "none"
        msg = f"{folder} must hold one secret key, NAME{SECRET}; it holds: {said}"
        remedy = "keep the one that is ours" if secrets else f"run `stagelink keygen {folder}`"
        raise ConfigError(msg, remedy=remedy)
    if len(publics) > MOST_KEYS:
        msg = f"{folder} holds {len(publics)} public keys, at most {MOST_KEYS} are read"
        raise ConfigError(msg, remedy="remove those of peers that are no more")
    name, own = secrets[0].stem, read_secret(secrets[0])
    peers = {path.stem: read_public(path) for path in publics}
    if peers.setdefault(name, own.public) != own.public:
        msg = f"{folder / name}{PUBLIC} is not the public half of {secrets[0].name}"
        raise ConfigError(msg, remedy="give the peer's key another name, and put ours back")
    return Keyring(own, peers, stages, server, name)

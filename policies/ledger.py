"""The ledger: what we have sent to whom and what is still owed, in running sums.

A request is counted from the moment that it is chosen until its last byte. Every operation costs the same with one
request or a thousand. Beside the sums the ledger keeps the integral of each count over time, so that a request can say
at its end how many others were beside it in the mean.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from policies.account import Account, Area
from policies.lease import Lease
from policies.types import NO_COMPANY, Deployment, Usual


class Work(NamedTuple):
    """Requests of ours on one deployment: the first five numbers of a ``LoadView``, in its order.

    ``LoadView(health, *ledger.view(deployment_id), …)``.
    """

    inflight: int = 0
    prefilling: int = 0
    owed_prefill_tokens: float = 0.0
    owed_decode_tokens: float = 0.0
    context_tokens: float = 0.0


_NOTHING = Work()


class Ledger:
    """All leases that are open, as sums per deployment and per hardware.

    Times are seconds on the caller's monotonic clock. Not safe between threads.
    """

    def __init__(self) -> None:
        self.busy: set[str] = set()
        """Deployments that have something in flight; for reading only."""
        self._accounts: dict[str, Account] = {}
        self._areas: dict[frozenset[str], Area] = {}

    def place(self, deployments: Iterable[Deployment], now: float) -> None:
        """Tell which deployments there are, where they run and their slots. Call it when the fleet changes.

        Accounts of deployments that are gone are dropped once nothing is in flight there.
        """
        placed = {deployment.id: deployment for deployment in deployments}
        used = {deployment.hardware.devices for deployment in placed.values()} - {frozenset()}
        self._areas = {devices: self._areas.get(devices) or Area(now) for devices in sorted(used, key=sorted)}
        for deployment in placed.values():
            devices = deployment.hardware.devices
            account = self._account(deployment.id, now)
            home = self._areas[devices] if devices else Area(now)
            shared = tuple(area for where, area in self._areas.items() if not devices.isdisjoint(where))
            account.move(now, home, shared or (home,), deployment.slots)
        for devices, area in self._areas.items():
            area.members = tuple(d.id for d in placed.values() if d.hardware.devices == devices)
        for gone in [i for i, account in self._accounts.items() if i not in placed and account.inflight == 0]:
            del self._accounts[gone]

    def open(
        self, deployment_id: str, *, prefill_tokens: float, decode_tokens: float, context_tokens: float, now: float
    ) -> Lease:
        """Count a request at once, before anything is sent.

        ``prefill_tokens`` are the prompt tokens that the engine probably has to read, ``decode_tokens`` those that it
        will probably write, ``context_tokens`` the whole prompt.
        """
        account = self._account(deployment_id, now)
        return Lease(account, float(prefill_tokens), float(decode_tokens), float(context_tokens), now)

    def _account(self, deployment_id: str, now: float) -> Account:
        account = self._accounts.get(deployment_id)
        if account is None:
            account = self._accounts[deployment_id] = Account(deployment_id, self.busy, now)
        return account

    def view(self, deployment_id: str) -> Work:
        """Return what is in flight and owed on a deployment."""
        account = self._accounts.get(deployment_id)
        if account is None or account.inflight == 0:
            return _NOTHING
        prefill, decode, context = account.owed_prefill, account.owed_decode, account.context
        return Work(
            account.inflight,
            account.inflight - account.first_tokens,
            prefill if prefill > 0.0 else 0.0,
            decode if decode > 0.0 else 0.0,
            context if context > 0.0 else 0.0,
        )

    def linger(self, deployment_id: str, now: float, *, lingers: bool) -> None:
        """Say that an engine without work keeps a core busy all the same, or does not any more."""
        self._account(deployment_id, now).linger(now, lingers=lingers)

    def usual(self) -> dict[str, Usual]:
        """Return the usual company on each deployment's hardware, where there is any."""
        known: dict[str, Usual] = {}
        for area in self._areas.values():
            if area.usual is not NO_COMPANY:
                for id_ in area.members:
                    known[id_] = area.usual
        return known

    @property
    def inflight(self) -> int:
        """Requests in flight on all deployments together."""
        return sum(account.inflight for account in self._accounts.values())

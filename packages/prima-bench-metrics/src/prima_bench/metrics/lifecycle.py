"""The life of a torchmetrics metric, with the traps of torchmetrics 1.9 closed. It knows nothing about rows.

What differs from :class:`torchmetrics.Metric`, and why:

* states are copied by reference (a kept tensor is never written to), so ``forward`` and ``sync`` cost no copy;
* an ``update`` or ``forward`` that raises leaves everything as it was, instead of losing the states gathered so far;
* a ``compute`` that raises leaves the metric unsynced, instead of stuck with the rows of all ranks;
* ``compute`` before ``update`` does not warn (an empty rank is normal), and returns lists and dicts as they are;
* casts (``half``, ``to(torch.bfloat16)``, ``set_dtype``) change no state; moves between devices do;
* loading a checkpoint copies what it loads, reports missing states, refuses states that do not fit together, and
  forgets a value computed before.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, Self

import torch
import torchmetrics
from torch import Tensor, nn
from torchmetrics.utilities.exceptions import TorchMetricsUserError

from prima_bench.metrics.errors import InputError

State = list[Tensor] | Tensor


class SafeMetric(torchmetrics.Metric):
    """A :class:`torchmetrics.Metric` whose list states may be large and are never written to once kept."""

    full_state_update = False

    @torch.jit.unused
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch and return its own value, at the cost of that batch alone.

        Takes the arguments of ``update`` and returns what ``compute`` returns. When it raises, nothing was added.
        """
        if self._is_synced:
            return super().forward(*args, **kwargs)  # raises what torchmetrics documents
        states, count, computed = self._copy_state_dict(), self._update_count, self._computed
        on_cpu = self.compute_on_cpu
        try:
            return super().forward(*args, **kwargs)
        except BaseException:
            self._restore(states)
            self._update_count, self._computed = count, computed
            self._to_sync, self._should_unsync, self._enable_grad = self.sync_on_compute, True, False
            self.compute_on_cpu = on_cpu
            raise
        finally:
            self._is_synced, self._cache = False, None

    def sync(
        self,
        dist_sync_fn: Callable[..., Any] | None = None,
        process_group: Any | None = None,
        should_sync: bool = True,
        distributed_available: Callable[[], bool] | None = None,
    ) -> None:
        """Hold the states of all ranks, until :meth:`unsync`.

        Args:
            dist_sync_fn: Not supported: states of any dtype and length are exchanged in this package's own way.
            process_group: The ranks to exchange with; None for the metric's own group, or all.
            should_sync: Whether to do it at all.
            distributed_available: Tells whether a process group is up.

        Raises:
            TorchMetricsUserError: If the metric is synced already.
            SyncError: If the ranks disagree about what they hold; raised on every rank, and nothing is changed.
        """
        if self._is_synced and should_sync:
            raise TorchMetricsUserError("The Metric has already been synced.")
        if dist_sync_fn is not None:
            raise InputError("dist_sync_fn cannot be replaced", hint="Leave it out.")
        available = distributed_available or self.distributed_available_fn
        if not should_sync or not available():
            return
        states = self._copy_state_dict()
        try:
            self._sync_dist(process_group=process_group)
        except BaseException:
            self._restore(states)
            raise
        self._cache, self._is_synced = states, True

    @contextmanager
    def sync_context(
        self,
        dist_sync_fn: Callable[..., Any] | None = None,
        process_group: Any | None = None,
        should_sync: bool = True,
        should_unsync: bool = True,
        distributed_available: Callable[[], bool] | None = None,
    ) -> Iterator[None]:
        """:meth:`sync` on entry, :meth:`unsync` on exit, whatever happens in between."""
        self.sync(dist_sync_fn, process_group, should_sync, distributed_available)
        try:
            yield
        except BaseException:
            self.unsync(should_unsync=self._is_synced)
            raise
        self.unsync(should_unsync=self._is_synced and should_unsync)

    def set_dtype(self, dst_type: str | torch.dtype) -> Self:
        """Do nothing: states keep the dtype that holds their values exactly."""
        return self

    def _wrap_update(self, update: Callable[..., Any]) -> Callable[..., None]:
        counted = super()._wrap_update(update)

        @wraps(update)
        def wrapped(*args: Any, **kwargs: Any) -> None:
            count, computed = self._update_count, self._computed
            try:
                counted(*args, **kwargs)
            except BaseException:
                self._update_count, self._computed = count, computed
                raise

        return wrapped

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(compute)
        def wrapped() -> Any:
            if self._computed is not None:
                return self._computed
            ours = not self._is_synced
            with self.sync_context(
                dist_sync_fn=self.dist_sync_fn,
                should_sync=self._to_sync and ours,
                should_unsync=self._should_unsync and ours,
            ):
                value = compute()
            if self.compute_with_cache:
                self._computed = value
            return value

        return wrapped

    def _copy_state_dict(self) -> dict[str, Any]:
        return {name: list(s) if isinstance(s := getattr(self, name), list) else s.clone() for name in self._defaults}

    def _restore(self, states: Mapping[str, Any]) -> None:
        for name, state in states.items():
            setattr(self, name, state)

    def _apply(  # type: ignore[override]  # torchmetrics and torch disagree about the second argument
        self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "", recurse: bool = True
    ) -> Self:
        nn.Module._apply(self, fn, recurse)  # type: ignore[no-untyped-call]
        device = fn(torch.zeros(1, device=self._device)).device
        moved = {n: getattr(self, n) for n in self._defaults if n not in exclude_state}
        self._restore(_to(moved, device))
        self._defaults = _to(self._defaults, device)
        self._cache = _to(self._cache, device)
        self._computed = _to(self._computed, device)
        self._forward_cache = _to(self._forward_cache, device)
        self._device = device
        return self

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        loaded = {n: state_dict.pop(prefix + n) for n in self._defaults if prefix + n in state_dict}
        if strict:
            missing_keys.extend(prefix + n for n in self._defaults if self._persistent[n] and n not in loaded)
        if loaded:
            try:
                states = self._checked_states(loaded)
            except InputError as error:
                error_msgs.append(f"{prefix or type(self).__name__}: {error}")
            else:
                self.reset()
                self._restore(states)
                self._update_count = max((len(s) for s in states.values() if isinstance(s, list)), default=1)
        nn.Module._load_from_state_dict(
            self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def _checked_states(self, states: Mapping[str, Any], *, owned: bool = False) -> dict[str, State]:
        """States that came from outside, checked, on this metric's device, and copied unless ``owned``.

        Raises:
            InputError: If a state is missing or not of the declared kind, or they do not fit together.
        """
        for name, default in self._defaults.items():
            state, many = states.get(name), isinstance(default, list)
            if not isinstance(state, type(default)) or (many and not all(isinstance(s, Tensor) for s in state)):
                raise InputError(f"state {name} must be a {'list of tensors' if many else 'tensor'}")
        ours = {name: states[name] for name in self._defaults}
        checked: dict[str, State] = _to(ours if owned else _mapped(ours, lambda t: t.detach().clone()), self.device)
        return checked


def _to(value: Any, device: torch.device) -> Any:
    return _mapped(value, lambda t: t.to(device))


def _mapped(value: Any, fn: Callable[[Tensor], Tensor]) -> Any:
    """The same lists and dicts with ``fn`` applied to every tensor in them."""
    if isinstance(value, Tensor):
        return fn(value)
    if isinstance(value, list):
        return [_mapped(v, fn) for v in value]
    if isinstance(value, dict):
        return {k: _mapped(v, fn) for k, v in value.items()}
    return value

"""The mean beside the median: what happens only now and then, such as a checkpoint, shows in the mean alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping


class Means:
    """Adds up what the slices of several sides answer: times, or rates of slices that each do the same work."""

    def __init__(self, *, rates: bool = False) -> None:
        self._rates = rates
        self._sums: dict[str, tuple[float, int]] = {}

    def of(self, name: str, step: Callable[[], Mapping[str, float]]) -> Callable[[], Mapping[str, float]]:
        """The same step, remembered."""

        def watched() -> Mapping[str, float]:
            numbers = step()
            for key, value in numbers.items():
                total, count = self._sums.get(f"{name}.{key}", (0.0, 0))
                self._sums[f"{name}.{key}"] = total + (1 / value if self._rates else value), count + 1
            return numbers

        return watched

    def __getitem__(self, key: str) -> float:
        """Over all slices. Rates are averaged by the time they took."""
        total, count = self._sums[key]
        return count / total if self._rates else total / count

    def note(self, ours: str, other: str, unit: str) -> str:
        """What to say below a row."""
        a, b = self[ours], self[other]
        return f"means of all slices, checkpoints included: {a:,.0f} {unit} against {b:,.0f}, ratio {a / b:.2f}"

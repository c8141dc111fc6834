"""A pipeline as a graph: the order in which its streams run, and how it is shown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from detent.errors import Invalid, NotFound
from detent.spark.pipeline import Pipeline
from detent.spark.pipeline_stream import Custom, Delta, Journal, Output, Queue, Source, Stream


def chosen(pipeline: Pipeline, only: Iterable[str] | None) -> list[Stream]:
    """The streams to run, upstream first: all, or those that are named."""
    streams = ordered(pipeline.streams)
    if not streams:
        raise Invalid(
            f"the pipeline {pipeline.name!r} has no streams: declare one with @pipeline.stream(read=..., write=...)"
        )
    if only is None:
        return streams
    wanted = set(only)
    for name in sorted(wanted - {stream.name for stream in streams}):
        raise NotFound(f"there is no stream {name!r}; there are {', '.join(stream.name for stream in streams)}")
    return [stream for stream in streams if stream.name in wanted]


def ordered(streams: list[Stream]) -> list[Stream]:
    """The streams so that what one writes is read by later ones. In a circle, the one that was declared first leads."""
    left = list(streams)
    found: list[Stream] = []
    while left:
        free = [one for one in left if not any(feeds(other, one) for other in left if other is not one)]
        # What stands downstream of a circle is no part of it, so it is not taken to break it.
        following = (free or [one for one in left if one in _behind(one, left)])[0]
        found.append(following)
        left.remove(following)
    return found


def feeds(one: Stream, other: Stream) -> bool:
    """Whether a stream writes what another one reads."""
    return any(source.reads(target) for source in other.sources for target in one.targets)


def _behind(stream: Stream, streams: list[Stream]) -> list[Stream]:
    """The streams that messages of this one can reach."""
    found: list[Stream] = []
    waiting = [stream]
    while waiting:
        at = waiting.pop()
        for other in streams:
            if other not in found and feeds(at, other):
                found.append(other)
                waiting.append(other)
    return found


def circles(pipeline: Pipeline) -> list[str]:
    """The streams whose messages can come back to them."""
    return [stream.name for stream in pipeline.streams if stream in _behind(stream, pipeline.streams)]


def journals_read(streams: list[Stream]) -> list[str]:
    """The journals that are read by name, once each."""
    names = (s.name for stream in streams for s in stream.sources if isinstance(s, Journal) and not s.is_pattern)
    return list(dict.fromkeys(names))


def journals_written(streams: list[Stream]) -> list[str]:
    """The journals that are written, once each."""
    return list(dict.fromkeys(t.name for stream in streams for t in stream.targets if isinstance(t, Journal)))


def queues_used(streams: list[Stream]) -> list[str]:
    """The queues that are read or written, once each."""
    ends = (end for stream in streams for end in (*stream.sources, *stream.targets))
    return list(dict.fromkeys(end.name for end in ends if isinstance(end, Queue)))


# -- shown ----------------------------------------------------------------------------------------------------------


def as_text(pipeline: Pipeline) -> str:
    """The streams, one a line, in the order in which they run."""
    streams = ordered(pipeline.streams)
    width = max((len(stream.name) for stream in streams), default=0)
    lines = [f"pipeline {pipeline.name}"]
    for stream in streams:
        read = ", ".join(map(str, stream.sources))
        written = ", ".join(map(str, stream.outputs))
        aside = f"  (what does not match: {stream.quarantine})" if stream.quarantine else ""
        lines.append(f"  {stream.name:<{width}}  {read} -> {written}{aside}")
    back = circles(pipeline)
    if back:
        lines.append(f"note: messages of {', '.join(back)} can come back to them")
    return "\n".join(lines)


def as_mermaid(pipeline: Pipeline) -> str:
    """The graph in Mermaid's language, as README files and many editors show it."""
    nodes: dict[object, str] = {}
    lines = ["flowchart LR"]

    def node(end: Source | Output) -> str:
        if end not in nodes:
            nodes[end] = f"n{len(nodes)}"
            lines.append(f"    {nodes[end]}{_shape(end)}")
        return nodes[end]

    for number, stream in enumerate(ordered(pipeline.streams)):
        lines.append(f"    s{number}{{{{{_quoted(stream.name)}}}}}")
        lines += [f"    {node(source)} --> s{number}" for source in stream.sources]
        lines += [f"    s{number} --> {node(target)}" for target in stream.outputs]
        if stream.quarantine is not None:
            lines.append(f"    s{number} -.-> {node(stream.quarantine)}")
    return "\n".join(lines)


def _shape(end: Source | Output) -> str:
    text = _quoted(end.path if isinstance(end, Delta) else str(end) if isinstance(end, Custom) else end.name)
    if isinstance(end, Queue):
        return f"[/{text}/]"
    return f"[({text})]" if isinstance(end, Delta) else f"[{text}]"


def _quoted(text: str) -> str:
    """A label, with what would end it written out."""
    return '"' + text.replace("#", "#35;").replace('"', "#quot;") + '"'


def as_json(pipeline: Pipeline) -> dict[str, Any]:
    """The graph for programs."""
    return {
        "pipeline": pipeline.name,
        "streams": [
            {
                "name": stream.name,
                "read": [_end(source) for source in stream.sources],
                "write": [_end(target) for target in stream.outputs],
                "quarantine": stream.quarantine and stream.quarantine.name,
            }
            for stream in ordered(pipeline.streams)
        ],
        "circles": circles(pipeline),
        "mermaid": as_mermaid(pipeline),
    }


def _end(end: Source | Output) -> dict[str, str]:
    kind = type(end).__name__.lower()
    if isinstance(end, Delta):
        return {"kind": kind, "path": end.path}
    return {"kind": kind, "name": str(end) if isinstance(end, Custom) else end.name}

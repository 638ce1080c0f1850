"""The sentences of events, from the session's answers."""

from __future__ import annotations

import os
from typing import Any


def where(site: dict[str, Any]) -> str:
    """ "silu at utils.py:80 (via :67)": the place that is edited, and the chain's own."""
    name = os.path.basename(site["file"])
    text = f"{site['rule']} at {name}:{site['line']}"
    chain = os.path.basename(site.get("chain_file", site["file"])), site.get("chain_line")
    if chain[1] is None or chain == (name, site["line"]):
        return text
    return f"{text} (via {'' if chain[0] == name else chain[0]}:{chain[1]})"


def sites(found: list[dict[str, Any]]) -> list[str]:
    """A line for each site, and one for all those whose rules replace nothing yet."""
    lines = [site(one) for one in found if not one.get("found_only")]
    if only := [one for one in found if one.get("found_only")]:
        calls = sum(one["calls"] for one in only)
        lines.append(f"found only: {len(only)} more chain{'s' if len(only) != 1 else ''}, "
                     f"{calls} calls, of rules that replace nothing yet")  # fmt: skip
    return lines


def site(site: dict[str, Any]) -> str:
    calls = f"{site['calls']} call{'s' if site['calls'] != 1 else ''}"
    if site["status"] == "planned":
        now = site.get("source_now") or site["now"]
        return f"found {where(site)}: {calls}, {now} -> {site['becomes']}"
    return f"not replaced: {where(site)}, {calls}: {refusal(site)}"


def refusal(site: dict[str, Any]) -> str:
    reason = (site.get("refusal") or {}).get("reason")
    return str(reason or "refused without a reason")


def proof(verdict: dict[str, Any], sites: list[dict[str, Any]], seconds: float) -> str:
    backward = any(site.get("backward_operators") for site in sites)
    captured = sum(site["captured_calls"] for site in verdict["sites"])
    generated = sum(site["generated_cases"] for site in verdict["sites"])
    return (
        f"proved the same function in fp64: {captured} recorded calls, {generated} generated "
        f"inputs, forward{' and backward' if backward else ''}, in {seconds:.2f} s"
    )


def validation(verdict: dict[str, Any]) -> str:
    return (
        f"the switched step is what was planned: {verdict['sites_replaced']} forward and "
        f"{verdict['backward_replaced']} backward chains replaced, "
        f"{verdict['operators_equal']:,} other operators unchanged"
    )


def ratio(ab: dict[str, Any]) -> str:
    """The measured ratio: of the fresh pairs when there are some."""
    shown = next((ab[k] for k in ("headline_wall", "choosing") if ab[k]["pairs"] > 0), None)
    if shown is None:
        return "no two steps could be compared"
    low, high = shown["low"], shown["high"]
    interval = f" [{low:.2f}, {high:.2f}]" if high is not None else ""
    return f"old / new = {shown['ratio']:.2f}x{interval} over {shown['pairs']} pairs of steps"


def end(outcome: str, reason: str) -> str:
    """The last event of a run."""
    return {
        "tuned": f"kept: {reason}",
        "not_faster": f"not faster, the original code is back: {reason}",
        "undecided": f"undecided, the original code runs: {reason}",
        "nothing_found": f"nothing found: {reason}",
        "refused": f"nothing replaced: {reason}",
    }.get(outcome, reason)

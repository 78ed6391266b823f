# SPDX-License-Identifier: MIT OR Apache-2.0
"""Figures of two memory snapshots of PyTorch: a real GPU's and a dry run's."""

import pickle

SIGNS = {
    "alloc": -1,
    "segment_alloc": -1,
    "segment_map": -1,
    "free_completed": 1,
    "segment_free": 1,
    "segment_unmap": 1,
}


def load(path):
    with open(path, "rb") as file:
        snapshot = pickle.load(file)
    events = next((trace for trace in snapshot["device_traces"] if trace), [])
    return snapshot["segments"], [event for event in events if event["action"] != "snapshot"]


def peaks(segments, events):
    """The most bytes in blocks and in segments, followed backwards from the end, as a snapshot has no counters."""
    live = [block for segment in segments for block in segment["blocks"] if block["state"].startswith("active")]
    now = {
        "allocated": sum(block["size"] for block in live),
        "reserved": sum(segment["total_size"] for segment in segments),
    }
    most = dict(now)
    for event in reversed(events):
        name = "reserved" if event["action"].startswith("segment") else "allocated"
        now[name] += SIGNS.get(event["action"], 0) * event["size"]
        most[name] = max(most[name], now[name])
    return most


def compare(real, dry, what):
    """Three figures: events that agree in order, the peak of allocated and of reserved memory."""
    (segments, events), (dry_segments, dry_events) = load(real), load(dry)
    order, dry_order = ([(event["action"], event["size"]) for event in each] for each in (events, dry_events))
    same = next(
        (i for i, (one, other) in enumerate(zip(order, dry_order)) if one != other), min(len(order), len(dry_order))
    )
    if len(order) != len(dry_order) and same == min(len(order), len(dry_order)):
        same = min(same, max(len(order), len(dry_order)) - 1)
    found = [{"what": f"{what}: events in order", "unit": "events", "real": len(order), "dry": same}]
    real_peaks, dry_peaks = peaks(segments, events), peaks(dry_segments, dry_events)
    for name in ("allocated", "reserved"):
        found.append(
            {"what": f"{what}: peak {name}", "unit": "bytes", "real": real_peaks[name], "dry": dry_peaks[name]}
        )
    return found

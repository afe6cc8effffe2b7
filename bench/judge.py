"""What bench/reliability.py makes of what it saw: functions without IO. None depends on how fast the machine is."""

import math

# Windows into which samples are cut. The first one is warming up and not judged.
WINDOWS = 4
# Fewer samples in a window say nothing.
LEAST = 8


def is_enough(series):
    return len(series) // WINDOWS >= LEAST


def floors(series):
    """The lowest fifth of each window ends here: what is in use for a moment does not raise it, a leak does."""
    if not is_enough(series):
        return None
    size = len(series) // WINDOWS
    windows = [sorted(series[n * size:(n + 1) * size]) for n in range(WINDOWS)]
    return [window[size // 5] for window in windows]


def grows(series, slack):
    """Whether the floor rises by more than `slack` (and a fiftieth) from each window to the next one.

    A buffer that is made once, a busy moment or memory that is given back late moves the floor in one place. A leak moves
    it everywhere. None: there are too few samples to say.
    """
    found = floors(series)
    if found is None:
        return None
    judged = found[1:]
    return all(after > before * 1.02 + slack for before, after in zip(judged, judged[1:]))


def percentile(values, share):
    """The value that `share` of all do not exceed."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def expired(validity):
    """Of `(now, not_after)` pairs, those in which the certificate was not valid any more."""
    return [(now, until) for now, until in validity if now >= until]

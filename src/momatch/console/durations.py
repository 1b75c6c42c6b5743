"""Human-readable durations."""


def format_duration(seconds: float) -> str:
    """A duration as "0.4 s", "45 s", "3 min 05 s", "2 h 07 min" or "3 d 04 h"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes} min {rest:02} s"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours:02} h" if days else f"{hours} h {minutes:02} min"

"""Headers of every answer that does not have them itself. A browser that shows an answer runs nothing in it, puts it
into no page of another site, and names its address to no other site."""

from __future__ import annotations

PROTECTION = (
    (b"content-security-policy",
     b"default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)

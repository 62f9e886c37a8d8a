"""A migration's own phases: plan, copy, compare, cut over; its report."""

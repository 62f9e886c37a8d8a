"""The domain: spec, plan, fence, copy, replay, ordering, lease, compare, cutover."""

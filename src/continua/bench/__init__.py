"""Floor 7: what the library costs, as ratios to peers measured side by side. Nobody imports it."""

"""From shards to trained networks: a loop that knows no diffusion, and stages that know no loop."""

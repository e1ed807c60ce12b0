import json, sys
TOY = 'toy' in sys.argv
S = dict(preset='builtin', train=True, judge_parts=[f'q.0{i}' for i in range(9)], least=0.05, tail=25, device='', compiled='--compiled',
    until=dict(base=540, rows=1650), experiments=[['reference anchor likelihood autoencoder sweep generation seconds', 256, 'sweep generation'], ['reference anchor autoencoder generation seconds', 512, 'generation']],
    set=['base_draft_rate=0', 'base_loop.num_accumulated=1', 'base_loop.learning_rate=1e-3', 'base_loop.warmup_steps=100', 'base_loop.decay_share=0.6', 'base_loop.average_decay=0.997', 'base_loop.save_every=100000', 'base_loop.evaluate_every=100000'])
if TOY: S |= dict(preset='tiny', judge_parts=[], cache=__import__('os').path.expanduser('~/.cache/crocodil'), tail=1, until=dict(base=60, rows=900), device='--device cpu', compiled='', experiments=[['reference anchor likelihood sweep generation', 64, 'sweep generation']], set=['base_draft_rate=0', 'base_loop.decay_share=0.5', 'base_loop.warmup_steps=0'])
json.dump(S, open('settings.json', 'w'), indent=1)

import torch, time
from crocodil.seeding import Streams, compiled_draws
dev = 'cuda' if torch.cuda.is_available() else 'cpu'
s = Streams.of('x', samples=range(256), device=dev)
a = [s.at('a').uniform(256), s.at('b').normal(16, 64), s.at('c').uniform()]
with compiled_draws():
    t = time.time(); b = [s.at('a').uniform(256), s.at('b').normal(16, 64), s.at('c').uniform()]; t = time.time() - t
    for _ in range(3): s.at('b').normal(16, 64)
print('compiled draws equal', [torch.equal(x, y) for x, y in zip(a, b)], f'{t:.1f} s to compile')

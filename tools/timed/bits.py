"""Bits of registers under the prior and a Gaussian, and of the text given them; the stored model, validation programs, CPU."""
import sys, math, torch
from crocodil import Crocodil
from crocodil.corpus.shards import Corpus
from crocodil.metrics.likelihood import register_nats, negative_elbo
from crocodil.processes.masking import bare_canvas
from crocodil.reproduce.held_out import HeldOut
from crocodil.seeding import Streams
torch.set_num_threads(2); torch.set_grad_enabled(False)
B = int(sys.argv[1]); D = int(sys.argv[2])
pipe = Crocodil.from_pretrained(device='cpu'); corpus = Corpus('CORPUS/c12k')
programs = corpus.programs('valid', length=256)
import numpy as np
ids = np.random.default_rng(0).permutation(len(programs))[:B]
tokens = torch.as_tensor(np.asarray(programs.batch(ids)).astype('int64'))
S = pipe.tokenizer.special
enc, den, dem = pipe.encoder, pipe.conditional, pipe.demasker
from crocodil.models.register_encoder import RegisterEncoder
z = enc(tokens)[:, :16].float()
print('bank std', z.std().item(), 'mean', z.mean().item(), flush=True)
noisy, hidden = bare_canvas(tokens, mask_id=S.mask)
cond = enc(noisy, hidden=hidden)
print('cond', cond.shape, flush=True)
st = lambda n: Streams.of(n, samples=range(B))
given = torch.zeros_like(tokens, dtype=torch.bool); given[:, 0] = True
for noise in (1.0, 1.41, 2.0):
    model = register_nats(lambda x, t: den(x, t, condition=cond), z, noise_std=noise, shift=2.0, num_steps=32, streams=st('r'))
    mean = z.mean(0, keepdim=True); var = z.var(0, keepdim=True)
    gauss = 0.5 * torch.log2(1 + var / noise**2).sum() # bits, mean over texts of a diagonal Gaussian fitted to these
    bank = z + noise * st('n').normal(16, 64)
    text = negative_elbo(lambda x, rows: dem(x, bank if len(x) == B else bank, rows=rows), tokens, mask_id=S.mask, streams=st('m'), given=given, num_draws=D)
    k = 1 / math.log(2)
    print(f'noise {noise}: registers {model.mean().item()*k:.0f} +- {model.std().item()*k/B**.5:.0f} bits, Gaussian {gauss.item():.0f}; text {text.mean().item()*k:.0f}', flush=True)
alone = negative_elbo(lambda x, rows: dem(x, z[:, :0], rows=rows), tokens, mask_id=S.mask, streams=st('m'), given=given, num_draws=D)
print(f'text alone {alone.mean().item()/math.log(2):.0f}')

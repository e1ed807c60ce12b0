"""chain.py: a small causal head on the frozen demasker draws the tokens of one call one after the other. Train it, then rows.

W: start/ (built-in model), corpus/, res/. `toy`: CPU, a few steps.
"""
import json, os, sys, time, math, fcntl, torch, torch.nn.functional as F
from dataclasses import replace
from pathlib import Path
from torch import nn
from crocodil.corpus.shards import Corpus
from crocodil.cli.reproduce import _evaluator
from crocodil.pipeline import Crocodil
from crocodil.models.llada import Block, RMSNorm
from crocodil.objectives.demasking import DemaskerObjective, mask_some_fully, sample_guide
from crocodil.objectives.drafts import with_drafts
from crocodil.processes.masking import mask_prob_at, mask_tokens
from crocodil.processes import reveal as R
from crocodil.reproduce.held_out import HeldOut
from crocodil.reproduce.protocol import FULL
from crocodil.runtime.graphs import eager
from crocodil.sampling import decode as D
from crocodil.sampling.decode import Engine, Revealed
from crocodil.seeding import Streams
from crocodil.text.encode import encode_tokens
from crocodil.text.tokenizer import Tokenizer
from crocodil.training.data import Data

W = Path(os.environ.get('W', '/tmp/w')); TOY = 'toy' in sys.argv
S = json.loads((W / 'code/settings.json').read_text()); T0 = int((W / 't0').read_text())
dev = 'cpu' if TOY else 'cuda'; LEN = 64 if TOY else 256; B = 8 if TOY else 256
SECONDS = 8 if TOY else S.get('chain_seconds', 300); NB = int(os.environ.get('CHAIN_BLOCKS', '1'))
say = lambda *a: print(f'[{time.time()-T0:.0f}]', *a, flush=True)
torch.set_float32_matmul_precision('high')
corpus = Corpus(W / 'corpus')
pipe = Crocodil.from_pretrained(W / 'start', device=dev, dtype=torch.float32)
for m in (pipe.demasker, pipe.encoder):
    m.requires_grad_(False)
    if not TOY: [b.compile() for b in (m.backbone.blocks if hasattr(m.backbone, 'blocks') else m.backbone.layers)]
bb = pipe.demasker.backbone; cfg = bb.config; MASK = cfg.mask_id
stash = {}
plain_transform = bb.transform
def transform(*a, **k):
    out = plain_transform(*a, **k); stash['h'] = out; return out
bb.transform = transform

class Chain(nn.Module):
    def __init__(self, nb):
        super().__init__(); w = cfg.width
        self.left = RMSNorm(w, cfg.norm_eps); self.join = nn.Linear(2 * w, w, bias=False)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(nb)); self.norm = RMSNorm(w, cfg.norm_eps); self.out = nn.Linear(w, w, bias=False)
        for b, src in zip(self.blocks, bb.blocks[-nb:]): b.load_state_dict(src.state_dict())
        nn.init.zeros_(self.out.weight)
        with torch.no_grad():
            eye = torch.eye(w); self.join.weight.copy_(torch.cat([eye, torch.randn(w, w) * 0.3 * w**-0.5], 1))
    def forward(self, h, left):
        """States that predict x_j from the demasker's states and the tokens at j - 1 (MASK where unknown)."""
        e = self.left(bb.embed(left).to(h.dtype)) * h.float().std().to(h.dtype)
        s = self.join(torch.cat([h, e], -1)); angles = bb.angles(torch.arange(h.shape[1], device=h.device)[None])
        rot = (angles.cos()[:, None], angles.sin()[:, None])
        for b in self.blocks: s = b(s, rot, None, True)
        return h + self.out(self.norm(s))
torch.manual_seed(0)
if NB == 1:
    from crocodil.models.causal_head import CausalHead, CausalHeadConfig
    from crocodil.seeding import generator_for
    chain = CausalHead(CausalHeadConfig(backbone=cfg)).init_weights(bb, generator_for('chain')).to(dev)
    run_head = lambda h, left: chain(h, left, bb)
else:
    chain = Chain(NB).to(dev)
    run_head = lambda h, left: chain(h, shift_right(left))
say('chain parameters', sum(p.numel() for p in chain.parameters()))
shift_right = lambda x: F.pad(x[:, :-1], (1, 0), value=cfg.eos_id)

# ---- training
obj = DemaskerObjective(register_cosine=0.5, uniform_noise=True, all_mask_rate=0.1, prefix_lengths=(8, 8, 16, 16, 16, 16, 32), empty_prefix_rate=0.1, draft_rate=0.5, given_rate=0.0, partial_rate=0.0)
data = Data(train=[corpus.programs('train', length=LEN)], valid=[corpus.programs('valid', length=LEN)], batch_size=B, seed=7, device=dev)
encode = lambda tokens, hidden=None: encode_tokens(pipe.encoder, tokens, hidden, retokenizer=pipe.retokenizer)
def batch_loss(step, tokens, streams, time_, only=None):
    """Mean loss of the chain and of the demasker's marginals on the tokens of a call; `only` = partial or full."""
    B = len(tokens)
    with torch.no_grad():
        mask_prob = mask_some_fully(mask_prob_at(time_), obj.all_mask_rate, streams.at('all-mask'))
        noisy, hidden = mask_tokens(tokens, mask_prob, mask_id=MASK, streams=streams.at('mask'))
        guide = sample_guide(encode, tokens, obj, streams)
        def demask(some, rows):
            n = len(some); return pipe.demasker(some, guide.noisy[:n], prefix_length=guide.prefix_length[:n], rows=rows)
        noisy, read = with_drafts(demask, noisy, hidden, rate=obj.draft_rate, mask_id=MASK, streams=streams.at('draft'))
        logits = demask(noisy, hidden); h = stash['h'][:, -tokens.shape[1]:].detach()
        lp = logits.float(); lp = lp.amax(1) - lp.logsumexp(1)
        conf = torch.full(tokens.shape, -1e9, device=dev).masked_scatter(hidden, lp)
        u = streams.at('chain').uniform(tokens.shape[1]).clamp(1e-6, 1 - 1e-6); noise = streams.at('chain noise').uniform()[:, None]
        conf = torch.where(hidden, conf + noise * -(-u.log()).log(), conf)
        full = streams.at('chain full').uniform() < 0.4
        if only: full = torch.full_like(full, only == 'full')
        share = torch.where(full, 1.0, streams.at('chain share').uniform()) if not only else torch.where(full, 1.0, 0.2)
        count = (hidden.sum(1) * share).ceil().long()
        chosen = R.highest(conf.double(), among=hidden, count=count)
        left = torch.where(chosen | full[:, None], tokens, noisy)
        wanted = torch.where(full[:, None], torch.ones_like(hidden), chosen)
        wanted[:, 0] = False
    states = run_head(h, left)[wanted]; target = tokens[wanted]
    loss = F.cross_entropy(bb.logits(states).float(), target)
    if only is None: return loss
    with torch.no_grad(): plain = F.cross_entropy(bb.logits(h[wanted]).float(), target)
    return loss, plain
opt = torch.optim.AdamW(chain.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.01)
cast = lambda: torch.autocast('cuda', dtype=torch.bfloat16, enabled=not TOY)
began, step, losses = None, 0, []
params = list(chain.parameters())
if not TOY: [b.compile() for b in (chain.blocks if NB > 1 else [chain.block])]
while True:
    tokens = data.tokens(step, range(B)); streams = data.streams(step, range(B)); t = data.times(step, range(B))[torch.randperm(B, generator=torch.Generator().manual_seed(step)).to(dev)]
    with cast(): loss = batch_loss(step, tokens, streams, t)
    opt.zero_grad(); loss.backward(); torch.nn.utils.clip_grad_norm_(params, 1.0)
    if began is None or step < 20: began = time.time()
    done = (time.time() - began) / SECONDS
    for g in opt.param_groups: g['lr'] = 1e-3 * min(1, (step + 1) / 100) * min(1, max(0.0, (1 - done) / 0.5))
    opt.step(); step += 1
    if step % 20 == 0 or TOY: losses.append(loss.item())
    if step % 200 == 0: say(step, 'loss', sum(losses[-10:]) / len(losses[-10:]), f'{done:.2f}')
    if done >= 1 and step > 21 or (TOY and step >= 3): break
say('steps', step, 'last', losses[-3:])
for only in ('partial', 'full'):
    rows = []
    for k in range(1 if TOY else 4):
        tokens = torch.from_numpy(corpus.programs('valid', length=LEN).batch(__import__('numpy').arange(k * B, k * B + B) % len(corpus.programs('valid', length=LEN)))).to(dev)
        st = Streams.of('chain valid', k, samples=range(B), device=dev)
        with torch.no_grad(), cast(): rows.append([x.item() for x in batch_loss(0, tokens, st, (torch.arange(B, device=dev) + .5) / B, only)])
    say('valid', only, 'chain, marginals:', [sum(c) / len(c) for c in zip(*rows)])
torch.save({k: v.half().cpu() for k, v in chain.state_dict().items()}, W / f'chain{NB}.pt')
if not TOY:
    chain.to(torch.bfloat16); pipe = Crocodil.from_pretrained(W / 'start', device=dev)
    bb = pipe.demasker.backbone; plain_transform = bb.transform; bb.transform = transform

# ---- decoding
MODE = {'each': False, 'last': False, 'all': False}
def scan(proposed, new, shown, full):
    """Draw the new tokens from left to right; others that are shown keep theirs."""
    h = stash['h'][:, -proposed.shape[1]:]
    known = proposed.masked_fill(~shown, MASK)
    known = torch.where(new, torch.full_like(known, MASK), known)
    count = int(new.sum(1).max()); rank = new.cumsum(1) - 1
    order = torch.full((len(new), count + 1), 0, device=new.device); index = torch.arange(new.shape[1], device=new.device).expand_as(new)
    order = order.scatter(1, rank.where(new, count), index)[:, :count]; valid = torch.arange(count, device=new.device)[None] < new.sum(1, keepdim=True)
    if NB == 1:
        def choose(logits, index):
            logits = logits.float(); logits[:, MASK] = -torch.inf; return logits.argmax(1)
        places = torch.where(valid, order, torch.full_like(order, new.shape[1]))
        return torch.where(new, chain.draw(h, known, places, choose, bb), proposed) if count else proposed
    for r in range(count):
        at = order[:, r:r + 1]
        state = run_head(h, known).gather(1, at[..., None].expand(-1, -1, h.shape[2]))[:, 0]
        logits = bb.logits(state).float(); logits[:, MASK] = -torch.inf
        token = logits.argmax(1, keepdim=True)
        known = known.scatter(1, at, torch.where(valid[:, r:r + 1], token, known.gather(1, at)))
        if MODE.get('stop') and False: break
    return torch.where(new, known, proposed)
def reveal(config, row_logits, positions, tokens, given, keys, bounds, allowed=None, read_length=None):
    index, _, _, calls_left = bounds.unbind()
    streams = Streams(keys).at('call', index.expand(len(keys)))
    hidden = D._hidden(bounds, tokens, config.mask_id)
    proposal = D._propose(config, row_logits, positions, tokens, given, streams, allowed)
    proposed = D._put(tokens, positions, proposal.tokens)
    log_prob = D._put(torch.zeros(tokens.shape, device=tokens.device), positions, proposal.log_prob)
    proposed_log_prob, is_finite = log_prob, log_prob.isfinite().all()
    if config.decoding.eos_last: log_prob = R.hold_back_eos(log_prob, is_eos=hidden & (proposed == config.eos_id), hidden=hidden)
    after_end = R.after_proposed_end(proposed, hidden=hidden, eos_id=config.eos_id) if config.decoding.pace == 'text' else None
    was_hidden = hidden.any(dim=1); is_open = D._in_block(bounds, tokens) & ~given & was_hidden[:, None]
    left = (calls_left - config.corrector_calls).clamp(min=1)
    st = R.RevealStep(log_prob, hidden, is_open, left, config.calls_per_block - config.corrector_calls, streams, after_end, config.decoding.apart, config.decoding.curve)
    kept = config.rule(st) & is_open
    shown = kept | ~is_open
    last = bool(calls_left == 1)
    if (MODE['last'] and last) or MODE['all']:
        text = is_open & (proposed != config.eos_id)  # up to the predicted end and a few more
        end = (torch.arange(1, tokens.shape[1] + 1, device=tokens.device) * text).amax(1)
        new = is_open & kept & (torch.arange(tokens.shape[1], device=tokens.device) < (end + 8)[:, None])
        proposed = scan(proposed, new, shown, True)
        ended = ((proposed == config.eos_id) & ~given & new).cumsum(1) > 0
        proposed = torch.where(ended & new, torch.full_like(proposed, config.eos_id), proposed)
    elif MODE['each']:
        proposed = scan(proposed, kept & (hidden | (proposed != tokens)) & (proposed != config.eos_id), shown, False)
    tokens = proposed.masked_fill(is_open & ~kept, config.mask_id)
    tokens = R.fill_after_eos(tokens, may_end=~given, mask_id=config.mask_id, eos_id=config.eos_id)
    if config.corrector_calls:
        complete = ~D._hidden(bounds, tokens, config.mask_id).any(dim=1) & (calls_left > 1)
        doubt = R.far_apart(-proposed_log_prob, among=is_open, distance=max(config.decoding.apart, 1))
        tokens = R.mask_again(tokens, complete, is_open, doubt, mask_id=config.mask_id, eos_id=config.eos_id)
    return Revealed(tokens, was_hidden, is_finite, proposed_log_prob, config.read_next(proposed))
pipe.__dict__['engine'] = Engine(eager, reveal)
C = 4 if TOY else S['samples']
while not TOY and not (W / 'cache/judges' / S['judge']).exists(): time.sleep(1)
ev = _evaluator(corpus, (S['judge'],), None, FULL, None) if not TOY or S.get('judge_toy') else None
tok = Tokenizer.load(W / 'corpus/tokenizer.json')
ref = ev.reference(HeldOut(corpus, tok, LEN).texts('valid', 2 * C)[:C]) if ev else None
G = dict(register_noise=0.7, num_registers=8)
T = 'conthendisc'
rows = [('each', 16, T, G), ('each+last', 16, T, G), ('all', 1, T, G), ('all', 4, T, G), ('each', 8, T, G), ('none', 64, T, G), ('each', 16, T, {}), ('each+last', 8, T, G),
        ('each', 32, T, G), ('all', 16, T, G), ('each', 16, T, {**G, 'register_noise': 0.5}), ('each', 16, 'conwithindisc', G), ('none', 8, T, G), ('last', 16, T, G), ('none', 16, T, G), ('each+last', 4, T, G)]
rows = rows[:int(os.environ.get('CHAIN_ROWS', '99'))]
if TOY: rows = [('each', 4, 'conthendisc', G), ('each+last', 4, 'conwithindisc', G), ('all', 2, 'conthendisc', G)]
for mode, calls, method, knobs in rows:
    if time.time() - T0 > S['until']['rows'] - 20: say('stopped'); break
    t = time.time()
    MODE.update(each='each' in mode, last='last' in mode, all=mode == 'all')
    try:
        k = dict(knobs, calls=calls)
        if calls < 8: k['corrector'] = 0.0
        made = pipe.generate(C, method=method, length=LEN, seed=1, show_progress=False, **k); texts = list(made.texts)
        name = f'chain{NB} {mode} {method[3:7]} calls {calls} {knobs}'
        (W / 'res' / f"texts-chain{NB}-{rows.index((mode, calls, method, knobs)):02}.json").write_text(json.dumps(texts[:60]))
        if ev is None: say(name, repr(texts[0][:80]), time.time() - t); continue
        row = ev.evaluate(texts, ref)
        tokens = sum(map(len, tok.encode_all(texts))) / len(texts)
        with open(W / 'res/evals.jsonl', 'a') as f, open(W / 'res/rows.txt', 'a') as g:
            fcntl.flock(f, fcntl.LOCK_EX); f.write(json.dumps({'name': name, 'mode': mode, **k, 'kind': method, **{a: b for a, b in row.items() if isinstance(b, (int, float)) or b is None}, 'tokens': tokens}) + '\n')
            g.write(f"{name:44} ppl {row['gen_ppl']:6.2f} ent {row['entropy']:.2f} d2 {row['distinct_2']:.3f} parse {100*row['parse_share']:5.1f} mauve {row['mauve']:.3f}+-{row['mauve_spread']:.3f} pooled {row['mauve_pooled']:.3f} tokens {tokens:.0f} {time.time()-t:.0f}s t={time.time()-T0:.0f}\n")
    except Exception as e:
        import traceback; traceback.print_exc(); open(W / 'res/rows.txt', 'a').write(f'chain {mode} {calls}: {e!r}\n')
say('chain done')

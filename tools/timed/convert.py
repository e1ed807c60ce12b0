"""convert.py JOINT.pt MODEL OUT: the trained denoiser of exp.py as a RegisterDenoiser with a body, beside MODEL's other networks."""
import sys, json, torch, shutil
from dataclasses import replace
from pathlib import Path
from crocodil.checkpoints.format import load_model, save_model
from crocodil.models.register_denoiser import RegisterDenoiser, begun_as_demasker
from crocodil.processes.registers import positions_across_text
from crocodil.seeding import generator_for
src, model, out = map(Path, sys.argv[1:4])
J = {k: v.float() for k, v in torch.load(src, weights_only=True, map_location='cpu').items()}
demasker = load_model(model / 'demasker').float(); old = load_model(model / 'conditional').config
b = demasker.config.backbone
config = replace(old, body=demasker.config, width=b.width, num_layers=b.num_layers, num_heads=b.num_heads, text_length=256)
d = begun_as_demasker(config, demasker, generator_for('convert'))
with torch.no_grad():
    d.body.blocks.load_state_dict({k.removeprefix('dem.backbone.blocks.'): v for k, v in J.items() if k.startswith('dem.backbone.blocks.')})
    d.body.norm.weight.copy_(J['dem.backbone.norm.weight']); d.body.boundaries.copy_(J['dem.boundaries']); d.proj_in.weight.copy_(J['dem.register_map.weight'])
    d.proj_in.bias.zero_(); d.time[0].weight.copy_(J['time.0.weight']); d.time[0].bias.copy_(J['time.0.bias'])
    d.time[2].weight.copy_(torch.eye(b.width)); d.time[2].bias.zero_()
    d.body.time_modulation.weight.copy_(J['time.2.weight']); d.body.time_modulation.bias.copy_(J['time.2.bias'])
    d.proj_out.weight.copy_(J['head.weight']); d.proj_out.bias.copy_(J['head.bias'])
    place = positions_across_text(config.condition_length, torch.tensor(256)) // (256 // config.condition_length)
    d.condition_embed.pos_embed.copy_(J['slot_embed'][place]); d.condition_embed.proj_in[2].bias.zero_()
save_model(d, out)
print(config)

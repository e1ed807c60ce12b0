"""Appendix B's world of two sentences, "cat meows" and "dog barks".

A masked diffusion model that reveals both words at once mixes the two; one register removes the mixtures. The
whole method on one page, three losses and four samplers, is src/crocodil/reproduce/experiments/two_sentences.py.
"""

from crocodil.reproduce.experiments.two_sentences import NUM_SAMPLES, rows

if __name__ == "__main__":
    found = rows(print)
    print(f"\n{NUM_SAMPLES} sentences each          calls   incoherent   the first four")
    for row in found:
        print(f"{row['sampler']:<27} {row['calls']:6d} {row['incoherent_share']:11.1%}   {row['first']}")

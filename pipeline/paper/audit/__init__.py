"""What the published numbers themselves say: arithmetic on results/reference (and the batch of config.yaml) -> docs/audit.md.

granularity.py   which n = problems x samples x runs can print each value of Table 1
protocol.py      which steps can have been evaluated, Figure 3 beside Table 1, how far the published curves reach,
                 which of them are alike or labelled with another batch
resolution.py    noise of the protocols, expected maximum of many evaluations, smallest difference they resolve, power
page.py          the page; states what is found and the arithmetic that shows it, and judges nobody
"""

[
[1380, 1390, 1400, 1380],
[1390, 1400, 1380, 1390],
]
# schedule 1f1b, 2 stages, 2 microbatches
# predicted iteration time: 0.5 s
# predicted iteration energy: 100.25 J

[
[('forward', 1380), ('forward', 1390), ('backward', 1400), ('backward', 1380)],
[('forward', 1390), ('backward', 1400), ('forward', 1380), ('backward', 1390)],
]
# schedule 1f1b, 2 stages, 2 microbatches
# predicted iteration time: 0.5 s
# predicted iteration energy: 100.25 J

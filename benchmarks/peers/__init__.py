"""leanseq beside what people run instead: PyTorch, a plain ONNX Runtime loop, CTranslate2.

materials           the same weights as checkpoint, bundle and CTranslate2 models; the lines
subjects, worker    each thing that is measured, alone in a process of its own
workloads, tuning   what is timed, and the settings with which CTranslate2 is quickest at it
equality            the proof that both compute the same, without which nothing is compared
rounds, memory      times, taken in turns; memory, loading time, disk
cost                how the time grows with length and beams
bars, report, plot  what was promised, and what was found
"""

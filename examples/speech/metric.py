import numpy as np


def character_errors(outputs, labels):
    s = outputs["scores"].argmax(-1)
    res = []
    for row, text in zip(s, labels):
        k = row[np.append(True, row[1:] != row[:-1])]
        h = "".join("_0123456789"[i] for i in k if i)
        d = np.arange(len(h) + 1)
        for i, c in enumerate(text, 1):
            p = d.copy()
            d[0] = i
            for j, e in enumerate(h, 1):
                d[j] = min(p[j] + 1, d[j - 1] + 1, p[j - 1] + (c != e))
        res.append(d[-1] / len(text))
    return np.array(res)


character_errors.higher_is_better = False

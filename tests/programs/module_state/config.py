TEMPERATURE = 1.0
RATES = {"drop": 0.5}


class State:
    noise = 0.3

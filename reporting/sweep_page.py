"""The report of a sweep."""



def write_sweep_report(results, output):
    return None

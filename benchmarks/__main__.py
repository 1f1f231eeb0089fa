"""`python -m benchmarks`: every benchmark, one table after another."""

from benchmarks import kernels, smollm2

if __name__ == "__main__":
    kernels.main()
    print()
    smollm2.main()

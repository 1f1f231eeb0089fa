"""`python -m benchmarks`: every benchmark, one table after another."""

from benchmarks import kernels, layer, overhead, smollm2

if __name__ == "__main__":
    for benchmark in (kernels, layer, smollm2):
        benchmark.main()
        print(flush=True)
    overhead.main([str(smollm2.model(30))])

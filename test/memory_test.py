"""opfuse.memory: the caching allocator for CPU tensors. Each case runs in a process of its own."""

import os
import subprocess
import sys
import textwrap

from conftest import ROOT

ENV = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "2"}


def run(code: str, **env) -> str:
    head = "import os, torch, opfuse.memory as memory\nMiB = 1 << 20\n"
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(code)],
        env={**ENV, **env}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_off_until_it_is_asked_for():
    run("""
        x = torch.ones(MiB)
        assert not memory.in_use() and memory.statistics().live_bytes == 0
    """)


def test_a_freed_block_serves_the_next_tensor():
    run("""
        memory.use_caching_allocator("1G")
        assert memory.in_use()
        x = torch.ones(4 * MiB)
        place = x.data_ptr()
        assert memory.statistics().live_bytes >= 16 * MiB
        del x
        before = memory.statistics()
        assert before.cached_bytes >= 16 * MiB
        y = torch.empty(4 * MiB)
        assert y.data_ptr() == place and memory.statistics().hits == before.hits + 1
        assert torch.zeros(4 * MiB).abs().max() == 0
    """)


def test_a_repeated_step_takes_no_fresh_pages():
    run("""
        import resource
        torch.manual_seed(0)
        linear = torch.nn.Linear
        model = torch.nn.Sequential(linear(512, 512), torch.nn.SiLU(), linear(512, 512))
        x = torch.randn(32768, 512)  # 64 MiB: above what the C library ever keeps
        def faults():
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(2):
                model(x).square().mean().backward()
                model.zero_grad()
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        faults()
        plain = faults()
        memory.use_caching_allocator()
        faults()
        cached = faults()
        assert plain > 10000 and cached < plain / 20, (plain, cached)
    """)


def test_results_are_the_same_bits():
    code = """
        import hashlib, sys
        {use}
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.SiLU(), torch.nn.Flatten(),
                                    torch.nn.Linear(16 * 30 * 30, 10))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(5):
            loss = model(torch.randn(16, 3, 32, 32)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(loss.item().hex())
    """
    plain = run(code.format(use=""))
    assert plain == run(code.format(use="memory.use_caching_allocator()"))
    assert plain.count("\n") == 5


def test_tensors_stay_valid_across_both_switches():
    run("""
        before = torch.arange(MiB).float()
        memory.use_caching_allocator()
        during = torch.arange(MiB).float()
        shared = during.numpy()
        assert torch.equal(before, during)
        del before
        memory.stop()
        assert not memory.in_use()
        after = torch.arange(MiB).float()
        assert torch.equal(during, after) and float(shared[-1]) == MiB - 1
        grown = during.clone()
        memory.use_caching_allocator()
        resized = torch.arange(MiB).float()
        memory.stop()
        resized.resize_(4 * MiB)[:MiB] = after
        assert torch.equal(resized[:MiB], grown)
        memory.use_caching_allocator()
        del during, after, resized, grown
        assert memory.trim() == 0 or memory.statistics().cached_bytes == 0
        assert float(shared[5]) == 5
    """)


def test_stopping_gives_kept_memory_back():
    run("""
        memory.use_caching_allocator()
        del_me = torch.ones(8 * MiB)
        del del_me
        assert memory.statistics().cached_bytes >= 32 * MiB
        memory.stop()
        assert memory.statistics().cached_bytes == 0
        memory.use_caching_allocator()
        x = torch.ones(8 * MiB)
        del x
        assert memory.trim() >= 32 * MiB and memory.statistics().cached_bytes == 0
    """)


def test_the_limit_holds():
    run("""
        memory.use_caching_allocator(20 * MiB)
        tensors = [torch.empty(MiB) for _ in range(10)]
        del tensors
        s = memory.statistics()
        assert s.cached_bytes <= 20 * MiB and s.evictions >= 5
        memory.use_caching_allocator("1M")
        assert memory.statistics().cached_bytes <= MiB
    """)


def test_a_limit_that_is_no_size_is_named():
    out = run("""
        for limit in "2X", "-1", -5, "", True, "1e30", "nan":
            try:
                memory.use_caching_allocator(limit)
            except ValueError as error:
                print(error)
    """)
    assert out.count("expected a size such as") == 7


def test_workers_by_fork_and_shared_memory():
    run("""
        from torch.utils.data import DataLoader
        memory.use_caching_allocator()
        torch.ones(MiB).sum()
        data = [torch.full((3, 128, 128), float(i)) for i in range(32)]
        loader = DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork")
        seen = sorted(v for batch in loader for v in batch[:, 0, 0, 0].tolist())
        assert seen == [float(i) for i in range(32)]
        t = torch.ones(MiB)
        t.share_memory_()
        assert t.is_shared() and t.sum() == MiB
    """)


def test_threads():
    run("""
        import threading
        memory.use_caching_allocator("64M")
        wrong = []
        def work(seed):
            for i in range(200):
                x = torch.full((50000 + 1000 * (i % 7),), float(seed))
                y = x + x
                if not (y == 2 * seed).all():
                    wrong.append(seed)
        threads = [threading.Thread(target=work, args=(s,)) for s in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert not wrong
    """)


def test_a_request_that_cannot_be_served_is_an_error_and_the_process_goes_on():
    out = run("""
        memory.use_caching_allocator()
        try:
            torch.empty(1 << 60)
        except RuntimeError as error:
            print(error)
        assert torch.ones(MiB).sum() == MiB
    """)
    assert "bytes of memory, found none" in out


def test_the_profiler_sees_its_memory():
    run("""
        memory.use_caching_allocator()
        with torch.profiler.profile(profile_memory=True) as prof:
            x = torch.empty(MiB)
            del x
        rows = {e.key: e.self_cpu_memory_usage for e in prof.key_averages()}
        assert rows["aten::empty"] == 4 * MiB, rows
    """)


def test_the_peak_can_be_measured():
    run("""
        memory.use_caching_allocator()
        x = torch.empty(8 * MiB)
        del x
        memory.reset_peak()
        y = torch.empty(2 * MiB)
        assert 8 * MiB <= memory.statistics().peak_bytes < 16 * MiB
    """)

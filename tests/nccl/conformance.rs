//! What Kiln relies on, of any library with NCCL's interface: the real one where `KILN_NCCL` names it and there are
//! CUDA devices, one rank on each; otherwise the stand-in with up to four ranks.

use std::ops::Range;
use std::time::Instant;

use burn::tensor::{DType, FloatDType, Tensor, TensorData, TensorPrimitive};
use kiln_engine::parallel::HostBackend;
use kiln_engine::parallel::engine::DeviceEngine;
use kiln_ops::Memory;

use super::*;
use crate::collective::values;

/// The library, and the numbers of ranks to try.
fn library<B: HostBackend>() -> Option<(Arc<Library>, Vec<usize>)> {
    let devices = (0..8).take_while(|index| B::open(*index).is_ok()).count();
    if B::is_processor() {
        return Some((Library::load(&stand_in()?.into()).unwrap(), vec![1, 2, 3, 4]));
    }
    match Library::find() {
        Ok(library) => Some((library, (1..=devices).collect())),
        Err(why) => {
            skip(&why);
            None
        }
    }
}

/// Lets every rank call `act` with its engine and its device.
fn on_all<B: HostBackend, T: Send>(
    library: &Arc<Library>,
    size: usize,
    act: impl Fn(&Nccl, usize) -> T + Sync,
) -> Vec<T> {
    let engines = joined(library, size, if B::is_processor() { |_| None } else { Some });
    std::thread::scope(|scope| {
        let act = &act;
        let start = |(rank, engine)| scope.spawn(move || act(engine, rank));
        let threads: Vec<_> = engines.iter().enumerate().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn tensor<B: HostBackend>(values: Vec<f32>, rank: usize, dtype: FloatDType) -> Tensor<B, 1> {
    let (length, device) = (values.len(), B::open(if B::is_processor() { 0 } else { rank }).unwrap());
    Tensor::<B, 1>::from_data(TensorData::new(values, [length]), &device).cast(dtype)
}

fn memory<B: HostBackend>(tensor: Tensor<B, 1>) -> (kiln_ops::Shared<B>, Memory) {
    let TensorPrimitive::Float(primitive) = tensor.into_primitive() else { unreachable!("it is of floats") };
    let mut shared = B::share(primitive);
    if let Some(wait) = B::fence([&mut shared]) {
        wait().unwrap();
    }
    let memory = B::memory(&mut shared).unwrap();
    (shared, memory)
}

fn back<B: HostBackend>(shared: kiln_ops::Shared<B>, rank: usize) -> Vec<f32> {
    let device = B::open(if B::is_processor() { 0 } else { rank }).unwrap();
    let tensor = Tensor::<B, 1>::from_primitive(TensorPrimitive::Float(B::adopt(shared, &device)));
    tensor.into_data().convert::<f32>().into_vec().unwrap()
}

/// The sum of what `of` gives each rank.
fn summed<B: HostBackend>(engine: &Nccl, rank: usize, of: Vec<f32>, dtype: FloatDType) -> Vec<f32> {
    let (own, from) = memory(tensor::<B>(of, rank, dtype));
    let (sum, to) = memory(tensor::<B>(vec![f32::NAN; from.length], rank, dtype));
    engine.all_reduce(from, to, &engine.mark().unwrap(), LIMIT).unwrap();
    drop(own);
    back::<B>(sum, rank)
}

/// Whole numbers have one sum in any order, and so have two terms.
fn sums_are_exact<B: HostBackend>() {
    let Some((library, sizes)) = library::<B>() else { return };
    for size in sizes {
        let whole = |rank: usize| (0..1000).map(|at| ((rank * 7 + at * 13) % 32) as f32 - 16.0).collect::<Vec<_>>();
        let add = |sum: Vec<f32>, other: Vec<f32>| sum.into_iter().zip(other).map(|(a, b)| a + b).collect::<Vec<_>>();
        let expected = (1..size).map(whole).fold(whole(0), add);
        for dtype in [FloatDType::F32, FloatDType::BF16] {
            let sums = on_all::<B, _>(&library, size, |engine, rank| summed::<B>(engine, rank, whole(rank), dtype));
            assert_eq!(sums, vec![expected.clone(); size], "{size} ranks, {dtype:?}");
        }
        let any =
            on_all::<B, _>(&library, size, |engine, rank| summed::<B>(engine, rank, values(rank, 0), FloatDType::F32));
        assert!(any.iter().all(|sum| sum == &any[0]), "the same bits on all ranks");
        match size {
            1 => assert_eq!(any[0], values(0, 0)),
            2 => assert_eq!(any[0], add(values(0, 0), values(1, 0))),
            _ => {}
        }
    }
}

/// Every rank gets the pieces that are for it, in the order of ranks; a piece may be empty, or for the sender.
fn exchanges_are_complete<B: HostBackend>() {
    let Some((library, sizes)) = library::<B>() else { return };
    for size in sizes {
        // Rank `from` sends `from + to` values to rank `to`, so that one sends nothing to itself.
        let piece = |from: usize, to: usize| (0..from + to).map(move |at| (100 * from + 10 * to + at) as f32);
        let all = on_all::<B, _>(&library, size, |engine, rank| {
            let mut end = 0;
            let sent: Vec<Range<usize>> = (0..size)
                .map(|to| {
                    end += rank + to;
                    end - rank - to..end
                })
                .collect();
            let own: Vec<f32> = (0..size).flat_map(|to| piece(rank, to)).chain([-1.0]).collect();
            let received: Vec<usize> = (0..size).map(|from| from + rank).collect();
            let (own, from) = memory(tensor::<B>(own, rank, FloatDType::F32));
            let room = vec![f32::NAN; received.iter().sum::<usize>().max(1)];
            let (filled, to) = memory(tensor::<B>(room, rank, FloatDType::F32));
            engine.exchange(from, &sent, to, &received, &engine.mark().unwrap(), LIMIT).unwrap();
            drop(own);
            back::<B>(filled, rank)
        });
        for (rank, got) in all.into_iter().enumerate() {
            let expected: Vec<f32> = (0..size).flat_map(|from| piece(from, rank)).collect();
            assert_eq!(got[..expected.len()], expected, "rank {rank} of {size}");
        }
    }
}

/// A closed engine ends its calls at once, and an aborted one takes no more.
fn a_closed_engine_ends_its_calls<B: HostBackend>() {
    let Some((library, sizes)) = library::<B>() else { return };
    let size = sizes.into_iter().max().unwrap_or(1).min(2);
    if size < 2 {
        return skip("a call that hangs takes two ranks");
    }
    let start = Instant::now();
    let said = on_all::<B, _>(&library, size, |engine, rank| {
        if rank == 1 {
            return [String::new(), String::new()];
        }
        [(); 2].map(|()| {
            let (own, from) = memory(tensor::<B>(vec![1.0; 100], rank, FloatDType::F32));
            let (sum, to) = memory(tensor::<B>(vec![0.0; 100], rank, FloatDType::F32));
            let limit = Duration::from_millis(200);
            let symptom = engine.all_reduce(from, to, &engine.mark().unwrap(), limit).unwrap_err();
            drop((own, sum));
            symptom.0
        })
    });
    assert!(start.elapsed() < LIMIT, "nobody waits for the other limit");
    assert_eq!(said[0], ["NCCL: Timed out waiting 200ms", "NCCL: the communicator was aborted"]);
}

/// Only the types that gradients have.
fn other_types_are_refused<B: HostBackend>() {
    let Some((library, _)) = library::<B>() else { return };
    on_all::<B, _>(&library, 1, |engine, rank| {
        let (own, from) = memory(tensor::<B>(vec![1.0], rank, FloatDType::F32));
        let wrong = Memory { dtype: DType::I8, ..from };
        let symptom = engine.all_reduce(wrong, wrong, &engine.mark().unwrap(), LIMIT).unwrap_err();
        assert!(symptom.0.contains("not used for tensors of I8"), "{symptom}");
        drop(own);
    });
}

/// Set for the process that makes and frees communicators.
const INSIDE: &str = "KILN_TEST_GENERATIONS";

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// 300 generations of an elastic run, of which every third one is aborted in a call that another rank does not make: no
/// descriptor stays open, and memory does not grow with their number.
#[test]
#[cfg(target_os = "linux")]
fn old_communicators_leave_nothing() {
    let Some(path) = stand_in() else { return };
    if std::env::var_os(INSIDE).is_none() {
        let name = "nccl::conformance::old_communicators_leave_nothing";
        let mut inside = Command::new(std::env::current_exe().unwrap());
        let output = inside.args(["--exact", name, "--nocapture"]).env(INSIDE, "1").output().unwrap();
        return assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    let library = Library::load(&path.into()).unwrap();
    let resident =
        || std::fs::read_to_string("/proc/self/statm").unwrap().split(' ').nth(1).unwrap().parse::<usize>().unwrap();
    let generation = |number: usize| {
        let engines = joined(&library, 2, |_| None);
        let (mut own, mut sum) = ([1.0f32; 10_000], [0.0f32; 10_000]);
        let [from, to] = [&mut own, &mut sum].map(|values| {
            let pointer = values.as_mut_ptr().cast();
            Memory { pointer, length: values.len(), dtype: DType::F32 }
        });
        if number.is_multiple_of(3) {
            let limit = Duration::from_millis(2);
            let symptom = engines[0].all_reduce(from, to, &engines[0].mark().unwrap(), limit).unwrap_err();
            assert_eq!(symptom.0, "NCCL: Timed out waiting 2ms");
        }
        engines.iter().for_each(|engine| engine.close());
        let symptom = engines[1].all_reduce(from, to, &engines[1].mark().unwrap(), LIMIT).unwrap_err();
        assert_eq!(symptom.0, "NCCL: the communicator was aborted");
    };
    let generations = |count: usize| (0..count).for_each(generation);
    generations(20);
    let (open, pages) = (descriptors(), resident());
    generations(300);
    assert_eq!(descriptors(), open);
    let grown = resident().saturating_sub(pages);
    assert!(grown < 2000, "{grown} pages more");
}

macro_rules! on_backends {
    ($($feature:literal $module:ident $backend:ty;)+) => {
        $(on_backend! { $feature $module $backend:
            sums_are_exact => || super::sums_are_exact::<TestBackend>();
            exchanges_are_complete => || super::exchanges_are_complete::<TestBackend>();
            a_closed_engine_ends_its_calls => || super::a_closed_engine_ends_its_calls::<TestBackend>();
            other_types_are_refused => || super::other_types_are_refused::<TestBackend>();
        })+
    };
}

// Those whose memory an engine can reach.
on_backends! {
    "flex" flex burn::backend::Flex;
    "tch" tch burn::backend::LibTorch<f32>;
    "tch" tch_cuda burn::backend::LibTorch<f32>;
    "cuda" cuda burn::backend::Cuda<f32, i32>;
}

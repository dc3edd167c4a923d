//! What a thread waits for before another library reads the memory of a tensor whose work is only queued.

use kiln_engine::HostBackend;
use kiln_ops::primitive;

use super::{tensor, to_vec};

/// Backends whose streams others cannot wait for give a fence, which any thread may wait for.
fn a_fence_ends_behind_the_work<B: HostBackend>() {
    let x = tensor::<B, 1>(&[1.5; 4096], [4096]);
    let y = (0..50).fold(x, |y, _| y * 1.0 + 2.0);
    let mut shared = B::share(primitive(y));
    let fence = B::fence([&mut shared]);
    assert_eq!(fence.is_some(), !B::CAN_SHARE, "CubeCL's backends do not show their stream");
    if let Some(wait) = fence {
        std::thread::spawn(wait).join().unwrap().unwrap();
    }
    let y = kiln_ops::tensor::<B, 1>(B::adopt(shared, &B::open(0).unwrap()));
    assert_eq!(to_vec(y), [101.5; 4096]);
}

on_every_backend! {
    a_fence_ends_behind_the_work_that_is_queued => || a_fence_ends_behind_the_work::<TestBackend>();
}

//! Flags of torchrun, of `torch.distributed.launch` and of other launchers, given to `train` itself.
//!
//! The command line turns a number of processes into `train launch`; see `cli/rewriting.rs`.

use super::Means::{Nothing, Read, Sets};
use super::{Alias, Line};

const ADDRESS: &str = "--master-addr";
const PORT: &str = "--master-port";
/// The port of PyTorch's launchers.
const USUAL_PORT: &str = "29500";

pub(super) const FLAGS: &[Alias] = &[
    Alias::word(
        "--nproc-per-node --num-processes",
        Nothing(
            "use --world-size N: one process hosts all its --gpu-ids; or use 'train launch --nproc N -- ARGUMENTS'",
        ),
    ),
    Alias::word(ADDRESS, Read(|value, line| meeting(value, line.value(PORT).unwrap_or(USUAL_PORT)))),
    Alias::word(PORT, Read(|value, line| meeting(line.value(ADDRESS).unwrap_or("127.0.0.1"), value))),
    Alias::word("--rdzv-endpoint", Read(endpoint)),
    Alias::key("--rdzv-id", "parallel.job_id"),
    Alias::only("--rdzv-backend", "c10d static", "rank 0 holds the rendezvous itself: use --dist-url tcp://HOST:PORT"),
    Alias::switch("--standalone --use-env", Sets("")),
    Alias::word("--local-rank", Read(local_rank)),
    Alias::only("--max-restarts", "0", "--elastic MIN:MAX continues with the remaining processes, without a restart"),
];

fn meeting(host: &str, port: &str) -> super::Read {
    let is_bare_ipv6 = host.contains(':') && !host.starts_with('[');
    let host = if is_bare_ipv6 { format!("[{host}]") } else { host.into() };
    match port.parse::<u16>() {
        Ok(1..) if !host.is_empty() => Ok(vec![("parallel.dist_url", format!("tcp://{host}:{port}"))]),
        _ => Err(("a host with a port from 1 to 65535", "use --dist-url tcp://HOST:PORT".into())),
    }
}

fn endpoint(value: &str, _: &Line) -> super::Read {
    match value.rsplit_once(':') {
        Some((host, port)) if !host.ends_with(':') => meeting(host, port),
        _ => meeting(value, USUAL_PORT),
    }
}

/// Device of a process: under a launcher the one of its `LOCAL_RANK`, which is also the default alone.
fn local_rank(value: &str, _: &Line) -> super::Read {
    match value.parse::<i64>() {
        Ok(-1 | 0) => Ok(Vec::new()),
        Ok(device @ 1..=1023) => Ok(vec![("parallel.gpu_ids", format!("[{device}]"))]),
        _ => Err(("a whole number, -1 to 1023", "remove it: the launcher sets LOCAL_RANK".into())),
    }
}

//! Which engine carries tensors between processes: `--dist-backend`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use kiln_system::{Error, Result};

use super::Nccl;
use super::alone::between_devices;
use super::library::Library;
use crate::parallel::config::DistBackend;
use crate::parallel::device::HostBackend;
use crate::parallel::engine::{DeviceEngine, KeyStore, Symptom};
use crate::parallel::{Devices, Links, Processes, World};

/// Names NCCL's network interface.
const INTERFACE: &str = "NCCL_SOCKET_IFNAME";

/// The engine for tensors that this process can use, and why.
#[derive(Clone)]
pub struct Transport {
    nccl: Option<Arc<Library>>,
    /// Whether tensors are in the host's memory.
    on_host: bool,
    is_alone: bool,
    asked: DistBackend,
    why: String,
}

impl Default for Transport {
    fn default() -> Self {
        let why = "they share a device".into();
        Self { nccl: None, on_host: false, is_alone: true, asked: DistBackend::Local, why }
    }
}

impl Transport {
    /// The engine between `devices` of this process, and with those of others unless the run `is_alone` in it.
    ///
    /// # Errors
    /// [`Error::Usage`] if NCCL is `asked` for and cannot be used here.
    pub fn choose<B: HostBackend>(devices: &[usize], asked: DistBackend, is_alone: bool) -> Result<Self> {
        if is_alone && devices.len() == 1 {
            return Ok(Self::default());
        }
        let without = |why| Self { nccl: None, on_host: false, is_alone, asked, why };
        if !matches!(asked, DistBackend::Auto | DistBackend::Nccl) {
            return Ok(without("as asked".into()));
        }
        let by_itself = asked == DistBackend::Auto;
        if is_alone && by_itself && B::CAN_SHARE {
            return Ok(without("this backend copies between devices".into()));
        }
        match found::<B>(devices[0], by_itself)? {
            Ok(library) => {
                let why = if by_itself { "all devices are CUDA" } else { "as asked" }.into();
                Ok(Self { nccl: Some(library), on_host: B::is_processor(), is_alone, asked, why })
            }
            Err(why) if by_itself => Ok(without(why)),
            Err(why) => {
                let other = if is_alone { "local" } else { "gloo" };
                Err(Error::usage(format!("the dist backend nccl cannot run: {why}; or use --dist-backend {other}")))
            }
        }
    }

    /// The engine and the reason, for people.
    pub fn describe(&self) -> String {
        match &self.nccl {
            Some(library) => {
                let rest = if self.is_alone { "in memory" } else { "over Gloo" };
                format!("tensors over NCCL {} ({}), the rest {rest}", library.version(), self.why)
            }
            None if self.is_alone => format!("memory ({})", self.why),
            None => format!("Gloo ({})", self.why),
        }
    }

    /// Whether the devices of the only process meet over NCCL.
    pub fn joins_devices(&self) -> bool {
        self.nccl.is_some() && self.is_alone
    }

    /// Connects the devices of `world`, which has one process; `None` if they meet in memory. Sums have the bits of
    /// those in memory.
    ///
    /// # Errors
    /// [`Error::PeerLost`] with an error of NCCL, or the end of `limit`.
    pub fn connect_alone(&self, world: &World, limit: Duration) -> Result<Option<Processes>> {
        between_devices(world, |store| self.connect(world, store, &Arc::default(), limit)).map_err(Error::PeerLost)
    }

    /// Connects the devices of this process with those of the others in `world`, of each stage by itself, and those of
    /// neighbouring stages; `None` if tensors go through the host. NCCL is used if all processes have the same version.
    ///
    /// # Errors
    /// Those of [`Nccl::connect`], and other versions in other processes if NCCL was asked for.
    pub fn connect(
        &self,
        world: &World,
        store: &dyn KeyStore,
        is_closed: &Arc<AtomicBool>,
        limit: Duration,
    ) -> std::result::Result<Option<Links>, Symptom> {
        let Some(library) = self.agreed(world, store)? else { return Ok(None) };
        let join = |place, devices: &[usize], name: &str| {
            let devices: Vec<_> = devices.iter().map(|id| (!self.on_host).then_some(*id)).collect();
            let engines = Nccl::connect(library, place, &devices, (store, name), is_closed, limit)?;
            Ok(engines.into_iter().map(|engine| Arc::new(engine) as Arc<dyn DeviceEngine>).collect())
        };
        // All processes make them in the same order, so that none waits for one that waits for another.
        let stage = |number| {
            let meets = |world: &World| world.processes() > 1 || (self.is_alone && world.devices.len() > 1);
            let Some(world) = world.of_stage(number).filter(meets) else { return Ok(None) };
            let name = format!("stage {number}");
            let ends: Vec<u64> = world.shares.iter().map(|share| share.end as u64).collect();
            let ends = told(&world, store, &format!("shares of {name}"), bytemuck::cast_slice(&ends))?;
            let first = ends[..world.rank].iter().map(|ends| ends.len() / size_of::<u64>()).sum();
            let ends: Vec<u64> = bytemuck::pod_collect_to_vec(&ends.concat());
            let start = |device: usize| device.checked_sub(1).map_or(0, |before| ends[before] as usize);
            let blocks: Vec<_> = (0..ends.len()).map(|device| start(device)..ends[device] as usize).collect();
            let engines = join([first, blocks.len()], &world.devices, &name)?;
            Ok(Some(Devices { engines, first, blocks }))
        };
        let stages = (0..world.stages).map(stage).collect::<std::result::Result<_, _>>()?;
        let mut wires = Vec::new();
        for before in 0..(world.stages - 1) * world.size {
            let behind = before + world.size;
            for ends in [[before, behind], [behind, before]] {
                let here = ends.map(|worker| world.hosted().contains(&worker));
                if let Some(end) = here.iter().position(|is_here| *is_here).filter(|_| here[0] != here[1]) {
                    let [from, to] = ends;
                    let mut engines: Vec<_> =
                        join([end, 2], &[world.device_of(ends[end])], &format!("{from} to {to}"))?;
                    wires.push((ends, engines.swap_remove(0)));
                }
            }
        }
        Ok(Some(Links { stages, wires }))
    }

    /// The library, if all processes have the same one. Each may have been started with another `--dist-backend`.
    fn agreed(&self, world: &World, store: &dyn KeyStore) -> std::result::Result<Option<&Arc<Library>>, Symptom> {
        let own =
            self.nccl.as_ref().map_or_else(|| format!("no NCCL ({})", self.why), |it| format!("NCCL {}", it.version()));
        let versions = told(world, store, "version", own.as_bytes())?;
        let Some(library) = &self.nccl else { return Ok(None) };
        let Some(other) = versions.iter().position(|version| version != own.as_bytes()) else {
            return Ok(Some(library));
        };
        let theirs = String::from_utf8_lossy(&versions[other]);
        let differ = format!("process {} has {own}, process {other} has {theirs}", world.rank);
        if self.asked == DistBackend::Nccl {
            return Err(Symptom(format!("{differ}; install one version, or use --dist-backend gloo")));
        }
        tracing::warn!("tensors go over Gloo: {differ}");
        Ok(None)
    }
}

/// Tells the processes of `world` a value; those of all of them in the order of ranks.
fn told(world: &World, store: &dyn KeyStore, what: &str, value: &[u8]) -> std::result::Result<Vec<Vec<u8>>, Symptom> {
    let key = |rank| format!("nccl/{what}/{rank}");
    store.set(&key(world.rank), value).map_err(Symptom)?;
    store.get(&(0..world.processes()).map(key).collect::<Vec<_>>()).map_err(Symptom)
}

/// The library, or why tensors cannot go over it; `by_itself` if nobody asked for NCCL.
fn found<B: HostBackend>(device: usize, by_itself: bool) -> Result<std::result::Result<Arc<Library>, String>> {
    let on_host = B::is_processor();
    if on_host && by_itself {
        return Ok(Err("tensors are in the host's memory".into()));
    }
    let mut probe = B::share(B::from_host(&[0.0], &B::open(device)?));
    if B::memory(&mut probe).is_none() {
        return Ok(Err("this backend does not show its memory, cuda and tch do".into()));
    }
    Ok(Library::find().and_then(|library| match library.takes_host_memory() {
        takes_it if takes_it == on_host => Ok(library),
        true => Err("this NCCL is a stand-in for the host's memory, and the devices are CUDA; unset KILN_NCCL".into()),
        false => Err("NCCL adds up in the memory of CUDA devices, and this run computes on the CPU".into()),
    }))
}

/// Lets NCCL use the interface of `--dist-interface`, unless `NCCL_SOCKET_IFNAME` is set.
///
/// # Safety
/// No other thread reads the environment at the same time.
pub unsafe fn name_interface(name: &str, asked: DistBackend) {
    if !name.is_empty() && asked != DistBackend::Gloo && std::env::var_os(INTERFACE).is_none() {
        // An equals sign asks for this name, and not for all that begin with it.
        // SAFETY: the caller's.
        unsafe { std::env::set_var(INTERFACE, format!("={name}")) };
    }
}

//! The `train` command: parse, resolve, run, exit code.

mod abort;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod allocator;

use std::panic::{catch_unwind, resume_unwind};
use std::process::ExitCode;

use kiln::cli::{Command, parse};
use kiln::config::resolve;
use kiln::data::is_decoding;
use kiln::error::{Result, shown};
use kiln::metrics::screen;
use kiln::metrics::utilization::{BY_BUS, ORDER};
use kiln::parallel::memory_error;
use kiln::report::write_for_user;
use kiln::stop::{leave, survive_file_limit};
use kiln::trainer::{
    Question, completed, doctor, evaluate, export, find, launch, members, pack, plan, predict, prepare_process,
    rendezvous, say, scaling, secret, slurm, sweep, train, verify, warn,
};

fn main() -> ExitCode {
    number_devices();
    // Without it, a write beyond the limit ends the process, as it would have anyway.
    drop(survive_file_limit());
    quiet_replicas();
    abort::explain();
    let ended = catch_unwind(|| parse().and_then(run));
    match ended.unwrap_or_else(|panic| Err(memory_error(&*panic).unwrap_or_else(|| resume_unwind(panic)))) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            error.to_string().lines().for_each(warn);
            // Without waiting for replicas that hang.
            leave(error.exit_code().into())
        }
    }
}

fn run(command: Command) -> Result<u8> {
    if let Command::Train(request) | Command::Evaluate { request, .. } | Command::Predict { request, .. } = &command {
        prepare_process(request);
    }
    match command {
        Command::Train(request) => train(resolve(&completed(request)?)?),
        Command::Evaluate { checkpoint, which, request } => evaluate(&checkpoint, which, request).map(|()| 0),
        Command::Predict { checkpoint, which, images, top, answers, stated, request } => {
            predict(&checkpoint, which, Question { images, top, answers }, stated, request)
        }
        Command::Export { checkpoint, which, to, output, averaged, stated } => {
            export(&checkpoint, which, to, &output, averaged, stated).map(|()| 0)
        }
        Command::Pack { config, output, recipe } => pack(&config, recipe, &output).map(|()| 0),
        Command::Scaling { sizes, arguments, request } => scaling(&sizes, &arguments, &request),
        Command::Find { what, arguments, request, output } => find(&what, &arguments, &request, &output),
        Command::Plan { options, arguments, request } => plan(&options, &arguments, &request),
        Command::Launch { processes, machines, arguments, request } => {
            launch(processes, &machines, &arguments, request)
        }
        Command::Sweep { directory, points, options } => sweep(directory, &points, &options),
        Command::Verify(verification) => verify(&verification),
        Command::Print(text) => {
            say(&text);
            Ok(0)
        }
        Command::Report { runs, output } => {
            let page = write_for_user(&runs, output)?;
            say(&format!("report      {}; curves.svg is beside it", shown(page)));
            Ok(0)
        }
        Command::Rendezvous { bind, parallel } => rendezvous(bind, &parallel),
        Command::Members { parallel, drain } => members(&parallel, drain).map(|()| 0),
        Command::Slurm { script, submit, request } => slurm(&script, submit, &request).map(|()| 0),
        Command::Doctor => {
            doctor();
            Ok(0)
        }
        Command::Secret(file) => secret(&file).map(|()| 0),
        Command::Config(request) => {
            say(&resolve(&completed(request)?)?.config.to_toml());
            Ok(0)
        }
    }
}

/// A replica that panics, or its loader, ends the run with an error that names the replica, a decoder of images with one that
/// names the image, and any thread without memory with one that says so; the panic's own report would only repeat it.
fn quiet_replicas() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let replica = std::thread::current().name().is_some_and(|name| name.starts_with("replica-"));
        if !replica && !is_decoding() && memory_error(panic.payload()).is_none() {
            screen::close();
            report(panic);
        }
    }));
}

/// Makes CUDA number devices like NVML and `nvidia-smi`, by their place on the bus, unless the user chose an order.
fn number_devices() {
    if std::env::var_os(ORDER).is_none() {
        // SAFETY: no thread exists yet that could read the environment.
        unsafe { std::env::set_var(ORDER, BY_BUS) };
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opens a page in the browser of the desktop.
//!
//! Over SSH the browser would start on the wrong machine, and without a display it would not start at all. In both
//! cases the path is printed, because the page itself was written.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Result;

use crate::output::{HINT, print_err};

/// Opens the page, or prints its path where no browser can show it. Standard output (`-`) is not a page.
pub(crate) fn open(page: &Path) -> Result<()> {
    if page == Path::new("-") {
        return Ok(());
    }
    let page = page.canonicalize()?;
    let why = match reason_against() {
        Some(why) => why.to_owned(),
        None => match start(&page) {
            Ok(()) => return Ok(()),
            Err(why) => why,
        },
    };
    let page = page.display();
    print_err(&format!("{why}; open {HINT}{page}{HINT:#} in a browser"));
    Ok(())
}

/// Why no browser can show a page here.
fn reason_against() -> Option<&'static str> {
    let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if ["SSH_CONNECTION", "SSH_TTY"].iter().any(&is_set) {
        return Some("this is an SSH session");
    }
    let has_display =
        cfg!(target_os = "macos") || ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(is_set);
    (!has_display).then_some("this session has no display")
}

fn start(page: &Path) -> Result<(), String> {
    let program = if cfg!(target_os = "macos") {
        "open"
    } else {
        "xdg-open"
    };
    let mut command = Command::new(program);
    command
        .arg(page)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let started = command.spawn().map(drop);
    started.map_err(|error| format!("cannot start {program}: {error}"))
}

//! A disk of our own: an ext4 file system in a file, mounted through a loop device, and shut down at will.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What safe Rust cannot do: the ioctl `EXT4_IOC_SHUTDOWN` with `EXT4_GOING_FLAGS_NOLOGFLUSH`.
const SHUTDOWN: &str = r#"sysopen(my $root, $ARGV[0], 0) or die "open: $!"; my $flags = pack("L", 2);
ioctl($root, 0x8004587d, $flags) or die "ioctl: $!";"#;

/// A file system in a file.
pub(super) struct Disk {
    image: PathBuf,
    mount: PathBuf,
}

impl Disk {
    /// Makes a file with a file system of so many bytes in it, below `directory`.
    pub(super) fn make(directory: &Path, bytes: u64) -> Result<Self, String> {
        let disk = Self { image: directory.join("disk.img"), mount: directory.join("mount") };
        let made = fs::create_dir_all(&disk.mount).and_then(|()| File::create(&disk.image)?.set_len(bytes));
        made.map_err(|error| format!("the disk's file cannot be made: {error}"))?;
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&disk.image))?;
        Ok(disk)
    }

    /// Where its files are.
    pub(super) fn root(&self) -> &Path {
        &self.mount
    }

    pub(super) fn mount(&self) -> Result<(), String> {
        run(Command::new("mount").args(["-o", "loop,noatime"]).arg(&self.image).arg(&self.mount))
    }

    pub(super) fn unmount(&self) -> Result<(), String> {
        run(Command::new("umount").arg(&self.mount))
    }

    /// Shuts the file system down: what was not synced stays unwritten for ever.
    pub(super) fn shut_down(&self) -> Result<(), String> {
        run(Command::new("perl").args(["-e", SHUTDOWN]).arg(&self.mount))
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.stdin(Stdio::null()).output() {
        Err(error) => Err(format!("{name} cannot be run: {error}")),
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

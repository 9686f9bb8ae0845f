//! Where sockets are, and who may use them.

use std::fs::{self, Permissions};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use pikake::console::client::{Client, ClientError};
use pikake::console::{Console, place};

use super::{PATIENCE, Program, say_ready, wait_for_parent};
use crate::support::child::{self, is_child};

/// Runs a test of this binary to its end, with its sockets in a folder.
fn run_in(folder: &Path, test: &str) -> String {
    let mut child = child::child(&format!("served::places::{test}"));
    child.env("XDG_RUNTIME_DIR", folder).env_remove("PIKAKE_CONSOLE");
    run(&mut child)
}

fn run(child: &mut Command) -> String {
    let (succeeded, output) = child::run(child);
    assert!(succeeded, "{output}");
    output
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn only_the_user_reaches_the_socket() {
    if is_child("served::places::only_the_user_reaches_the_socket") {
        let console = Console::start().unwrap();
        let path = console.path().unwrap().to_owned();
        assert!(path.starts_with(std::env::var_os("XDG_RUNTIME_DIR").unwrap()), "{path:?}");
        assert!(fs::symlink_metadata(&path).unwrap().file_type().is_socket());
        assert_eq!((mode(path.parent().unwrap()), mode(&path)), (0o700, 0o600));
        drop(console);
        assert!(!path.exists());
        return println!("it was checked");
    }
    let folder = tempfile::tempdir().unwrap();
    let output = run_in(folder.path(), "only_the_user_reaches_the_socket");
    assert!(output.contains("it was checked"), "{output}");
}

/// A folder that admits others, a symlink and a file are refused: the console then goes to `/tmp`,
/// and listings leave the folder out.
#[test]
fn unsafe_folders_are_not_used() {
    if is_child("served::places::unsafe_folders_are_not_used") {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").unwrap();
        let console = Console::start().unwrap();
        let path = console.path().unwrap();
        assert!(!path.starts_with(&runtime), "{path:?}");
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        let found = place::processes().unwrap();
        assert!(found.iter().any(|found| found.pid == std::process::id()), "{found:?}");
        assert!(found.iter().all(|found| !found.path.starts_with(&runtime)), "{found:?}");
        // A client leaves the folder out, too.
        let client = Client::connect(std::process::id(), PATIENCE).unwrap();
        assert_eq!(client.process().pid, std::process::id());
        return println!("it was checked");
    }
    let folder = tempfile::tempdir().unwrap();
    let pikake = folder.path().join("pikake");
    let check = || {
        let output = run_in(folder.path(), "unsafe_folders_are_not_used");
        assert!(output.contains("it was checked"), "{output}");
    };
    fs::create_dir(&pikake).unwrap();
    for mode in [0o701, 0o710, 0o720, 0o777] {
        fs::set_permissions(&pikake, Permissions::from_mode(mode)).unwrap();
        check();
    }
    fs::remove_dir(&pikake).unwrap();
    let other = tempfile::tempdir().unwrap();
    symlink(other.path(), &pikake).unwrap();
    check();
    assert_eq!(fs::read_dir(other.path()).unwrap().count(), 0);
    fs::remove_file(&pikake).unwrap();
    fs::write(&pikake, "").unwrap();
    check();
}

/// As after `su`: the variable is that of another user.
#[test]
fn a_folder_of_another_user_is_not_used() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can give a folder to another user");
    }
    if is_child("served::places::a_folder_of_another_user_is_not_used") {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").unwrap();
        let console = Console::start().unwrap();
        assert!(!console.path().unwrap().starts_with(&runtime));
        return println!("it was checked");
    }
    let check = |folder: &Path| {
        let output = run_in(folder, "a_folder_of_another_user_is_not_used");
        assert!(output.contains("it was checked"), "{output}");
    };
    const NOBODY: Option<u32> = Some(65_534);
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(folder.path(), NOBODY, NOBODY).unwrap();
    check(folder.path());
    // The folder inside was planted.
    let folder = tempfile::tempdir().unwrap();
    let planted = folder.path().join("pikake");
    fs::create_dir(&planted).unwrap();
    fs::set_permissions(&planted, Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(&planted, NOBODY, NOBODY).unwrap();
    check(folder.path());
}

#[test]
fn listings_remove_stale_sockets_alone() {
    if is_child("served::places::listings_remove_stale_sockets_alone") {
        let folder = Path::new(&std::env::var_os("XDG_RUNTIME_DIR").unwrap()).join("pikake");
        let console = Console::start().unwrap();
        // No process has this number: it is above the largest that Linux gives.
        let stale = folder.join("2000000000.sock");
        let new = folder.join(".2000000001.new");
        let listened = folder.join("2000000002.sock");
        drop(UnixListener::bind(&stale).unwrap());
        drop(UnixListener::bind(&new).unwrap());
        let listener = UnixListener::bind(&listened).unwrap();
        let file = folder.join("2000000003.sock");
        fs::write(&file, "a file").unwrap();
        let other = folder.join("other");
        drop(UnixListener::bind(&other).unwrap());
        let link = folder.join("2000000004.sock");
        symlink(&stale, &link).unwrap();
        let mut found = place::processes().unwrap();
        found.retain(|found| found.path.starts_with(&folder));
        let pids: Vec<u32> = found.iter().map(|found| found.pid).collect();
        assert_eq!(pids, [std::process::id(), 2_000_000_002]);
        assert_eq!(found[0].path, console.path().unwrap());
        assert!(!stale.exists() && !new.exists());
        assert!(listened.exists() && file.exists() && other.exists());
        assert!(fs::symlink_metadata(&link).is_ok());
        drop(listener);
        return println!("it was checked");
    }
    let folder = tempfile::tempdir().unwrap();
    let output = run_in(folder.path(), "listings_remove_stale_sockets_alone");
    assert!(output.contains("it was checked"), "{output}");
}

#[pikake::main(console)]
async fn waits_for_parent() {
    super::ready().await;
}

/// A killed process leaves its socket. Nobody connects to it, and the next listing removes it.
#[test]
fn the_socket_of_a_killed_process_is_removed() {
    if is_child("served::places::the_socket_of_a_killed_process_is_removed") {
        let Ok(pid) = std::env::var("PIKAKE_TEST_PID") else { return waits_for_parent() };
        let pid: u32 = pid.parse().unwrap();
        let found = || place::processes().unwrap().iter().any(|found| found.pid == pid);
        match Client::connect(pid, PATIENCE) {
            Ok(client) => {
                assert_eq!(client.process().pid, pid);
                assert!(found());
                println!("it lives");
            }
            Err(ClientError::NoProcess(dead)) => {
                assert_eq!(dead, pid);
                assert!(!found());
                println!("it is dead");
            }
            Err(error) => panic!("{error}"),
        }
        return;
    }
    const TEST: &str = "the_socket_of_a_killed_process_is_removed";
    let mut program = Program::start(&format!("places::{TEST}"));
    let look = |program: &Program| {
        let mut child = child::child(&format!("served::places::{TEST}"));
        child.env("XDG_RUNTIME_DIR", program.folder.path());
        run(child.env("PIKAKE_TEST_PID", program.child.id().to_string()))
    };
    assert!(look(&program).contains("it lives"));
    program.child.kill().unwrap();
    program.child.wait().unwrap();
    assert!(program.path().exists());
    assert!(look(&program).contains("it is dead"));
    assert!(!program.path().exists());
}

/// A console without a process, a process without a console, a process of another version.
#[test]
fn clients_say_why_they_cannot_connect() {
    let error = Client::connect(2_000_000_000, PATIENCE).unwrap_err();
    assert_eq!(error.to_string(), "there is no process 2000000000");
    let error = Client::connect(std::process::id(), PATIENCE).unwrap_err();
    assert!(matches!(error, ClientError::NoConsole(_)), "{error}");
    assert!(error.to_string().contains("PIKAKE_CONSOLE=1"), "{error}");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let error = Client::connect_to(&path, PATIENCE).unwrap_err();
    assert!(error.to_string().contains("No such file"), "{error}");
    let listener = UnixListener::bind(&path).unwrap();
    let error = Client::connect_to(&path, crate::support::ms(50)).unwrap_err();
    assert!(matches!(error, ClientError::NotAnswering(..)), "{error}");
    let serve = |bytes: Vec<u8>| {
        drop(listener.accept().unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                use std::io::Write;
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(&bytes).unwrap();
            });
            Client::connect_to(&path, PATIENCE).unwrap_err()
        })
    };
    let process = serde_json::json!({
        "pid": 1, "program": "none", "pikake": "0", "protocol": 1, "age": 0
    });
    // The path is that which the client was given, and not the name before the listening.
    let bound = folder.path().join("bound");
    let listener_of_bound = UnixListener::bind(&bound).unwrap();
    let renamed = folder.path().join("renamed");
    fs::rename(&bound, &renamed).unwrap();
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener_of_bound.accept().unwrap();
            pikake::console::protocol::write_frame(&mut stream, &process).unwrap();
        });
        let mut client = Client::connect_to(&renamed, PATIENCE).unwrap();
        client.ask(&pikake::console::protocol::Request::Kernels).unwrap_err()
    });
    assert!(error.to_string().ends_with("/renamed"), "{error}");
    let other = serde_json::json!({ "protocol": 999 });
    let frame = pikake::console::protocol::frame(&other).unwrap();
    let error = serve(frame);
    assert!(matches!(error, ClientError::Version { theirs: 999 }), "{error}");
}

#[test]
fn a_second_console_and_other_files_are_left() {
    if is_child("served::places::a_second_console_and_other_files_are_left") {
        let folder = Path::new(&std::env::var_os("XDG_RUNTIME_DIR").unwrap()).to_owned();
        let first = Console::start().unwrap();
        let error = Console::start().unwrap_err();
        assert!(error.to_string().contains("is the socket of another console"), "{error}");
        assert!(first.path().unwrap().exists());
        let file = folder.join("file");
        fs::write(&file, "mine").unwrap();
        let error = Console::builder().path(&file).start().unwrap_err();
        assert!(error.to_string().contains("is a file, and no socket"), "{error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
        // No file beside the socket is touched, and no socket that is in use.
        let names = [String::from("app.new"), format!("{}.new", std::process::id())];
        names.iter().for_each(|name| fs::write(folder.join(name), "mine").unwrap());
        drop(Console::builder().path(folder.join("app.sock")).start().unwrap());
        assert!(names.iter().all(|name| fs::read_to_string(folder.join(name)).unwrap() == "mine"));
        let new = folder.join(format!(".{}.new", std::process::id()));
        fs::write(&new, "mine").unwrap();
        let error = Console::builder().path(folder.join("app.sock")).start().unwrap_err();
        assert!(error.to_string().contains("is a file, and no socket"), "{error}");
        assert_eq!(fs::read_to_string(&new).unwrap(), "mine");
        fs::remove_file(&new).unwrap();
        let listener = UnixListener::bind(&new).unwrap();
        let error = Console::builder().path(folder.join("app.sock")).start().unwrap_err();
        assert!(error.to_string().contains("is the socket of another console"), "{error}");
        // What a killed process with the same number has left gives way.
        drop(listener);
        drop(Console::builder().path(folder.join("app.sock")).start().unwrap());
        assert!(!new.exists());
        // A stale socket at a path gives way.
        let path = folder.join("stale.sock");
        drop(UnixListener::bind(&path).unwrap());
        let console = Console::builder().path(&path).start().unwrap();
        // What another process has put in the place of the socket stays there.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "another's").unwrap();
        drop(console);
        assert_eq!(fs::read_to_string(&path).unwrap(), "another's");
        return println!("it was checked");
    }
    let folder = tempfile::tempdir().unwrap();
    let output = run_in(folder.path(), "a_second_console_and_other_files_are_left");
    assert!(output.contains("it was checked"), "{output}");
}

/// The clients of another user are turned away, also where the mode of the folder admits them.
#[test]
fn another_user_is_turned_away() {
    if is_child("served::places::another_user_is_turned_away") {
        let path = std::env::var_os("PIKAKE_TEST_SOCKET").unwrap();
        if std::env::var_os("PIKAKE_TEST_CLIENT").is_some() {
            let error = Client::connect_to(&path, PATIENCE).unwrap_err();
            assert!(matches!(error, ClientError::Closed(_)), "{error:?}");
            return println!("it was turned away");
        }
        let _console = Console::builder().path(&path).start().unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        say_ready();
        return wait_for_parent();
    }
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can become another user");
    }
    use std::os::unix::process::CommandExt;
    const TEST: &str = "places::another_user_is_turned_away";
    let folder =
        tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempdir().unwrap();
    let path = folder.path().join("open.sock");
    let program = Program::start_by(TEST, |child| {
        child.env("PIKAKE_TEST_SOCKET", &path);
    });
    // Another user may have no way to this binary.
    let binary = folder.path().join("client");
    fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
    let pattern = child::child(&format!("served::{TEST}"));
    let mut client = Command::new(&binary);
    client.args(pattern.get_args()).uid(65_534);
    client.envs(pattern.get_envs().filter_map(|(name, value)| Some((name, value?))));
    client.env("PIKAKE_TEST_SOCKET", &path).env("PIKAKE_TEST_CLIENT", "1").current_dir("/");
    let output = run(&mut client);
    // The test is for root alone, and the client is not root: it has to begin with the child's
    // part.
    assert!(output.contains("it was turned away"), "{output}");
    program.finish();
}

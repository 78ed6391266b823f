// SPDX-License-Identifier: MIT OR Apache-2.0
//! A local server in the role of the hub: its files, its errors, and servers that misbehave.
#![expect(clippy::unwrap_used, reason = "tests may fail")]

use std::io::{BufRead as _, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tonnage_model::{HubError, HubSettings, LocateError, Origin, locate};

const CONFIG: &str = r#"{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 100, "tie_word_embeddings": true}"#;

/// A request: its path, its token, and its range.
#[derive(Clone, Debug, Default)]
struct Asked {
    path: String,
    token: Option<String>,
    range: Option<String>,
}

/// Starts a server that answers each request with the bytes that the function gives.
fn serve(
    answer: impl Fn(&Asked, &mut TcpStream) + Send + Sync + 'static,
) -> (HubSettings, Arc<Mutex<Vec<Asked>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let requests = Arc::new(Mutex::new(Vec::new()));
    let (answer, seen) = (Arc::new(answer), requests.clone());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (answer, seen) = (answer.clone(), seen.clone());
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                let mut asked = Asked::default();
                for line in BufReader::new(stream.try_clone().unwrap()).lines() {
                    let line = line.unwrap_or_default();
                    let (name, value) = line.split_once(": ").unwrap_or((&line, ""));
                    match name.to_ascii_lowercase().as_str() {
                        "" => break,
                        "authorization" => asked.token = Some(value.to_owned()),
                        "range" => asked.range = Some(value.to_owned()),
                        _ if line.starts_with("GET ") => {
                            line.split(' ').nth(1).unwrap().clone_into(&mut asked.path);
                        }
                        _ => {}
                    }
                }
                seen.lock().unwrap().push(asked.clone());
                answer(&asked, &mut stream);
            });
        }
    });
    let settings = HubSettings {
        endpoint,
        token: None,
        offline: false,
        cache: None,
        timeout: Duration::from_secs(5),
    };
    (settings, requests)
}

fn reply(stream: &mut TcpStream, status: &str, headers: &str, body: &[u8]) {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
    );
    // The reader may have what it wants before the end.
    let _ = stream
        .write_all(head.as_bytes())
        .and_then(|()| stream.write_all(body));
}

/// A safetensors file whose header is longer than the first range.
fn weights(tensors: usize) -> Vec<u8> {
    let tensors = (0..tensors).map(|index| {
        let place = (index * 20, index * 20 + 20);
        let places = format!("[{}, {}]", place.0, place.1);
        format!(
            r#""layers.{index}.w": {{"dtype": "BF16", "shape": [5, 2], "data_offsets": {places}}}"#
        )
    });
    let header = format!("{{{}}}", tensors.collect::<Vec<_>>().join(", "));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file
}

/// The hub, with a model in two files, of which one is behind a redirect.
fn hub(asked: &Asked, stream: &mut TcpStream) {
    let path = asked.path.split('?').next().unwrap();
    let file = path.strip_prefix("/owner/model/resolve/main/");
    match (path, file) {
        (_, Some("config.json")) => reply(stream, "200 OK", "", CONFIG.as_bytes()),
        (_, Some("model.safetensors.index.json")) => {
            let index = br#"{"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "c": "one.safetensors"}}"#;
            reply(stream, "200 OK", "", index);
        }
        (_, Some("one.safetensors")) => {
            reply(stream, "302 Found", "Location: /elsewhere/one\r\n", b"");
        }
        ("/elsewhere/one", _) | (_, Some("two.safetensors")) => {
            let file = weights(2000);
            let last = asked.range.as_deref().unwrap().rsplit('-').next().unwrap();
            let end = file.len().min(last.parse::<usize>().unwrap() + 1);
            reply(stream, "206 Partial Content", "", &file[..end]);
        }
        ("/owner/gated/resolve/main/config.json", _) => {
            reply(
                stream,
                "403 Forbidden",
                "X-Error-Code: GatedRepo\r\n",
                b"no",
            );
        }
        ("/api/models", _) => reply(
            stream,
            "200 OK",
            "",
            br#"[{"id": "owner/model"}, {"id": "other/thing"}, {"id": "../x"}]"#,
        ),
        ("/api/models/owner/images/revision/main", _) => {
            reply(
                stream,
                "200 OK",
                "",
                br#"{"siblings": [{"rfilename": "model_index.json"}]}"#,
            );
        }
        _ if path.contains("/owner/images/") || path.contains("/owner/model/") => {
            reply(
                stream,
                "404 Not Found",
                "X-Error-Code: EntryNotFound\r\n",
                b"",
            );
        }
        _ => reply(
            stream,
            "401 Unauthorized",
            "X-Error-Code: RepoNotFound\r\n",
            b"",
        ),
    }
}

#[test]
fn configurations_and_headers_are_read_and_no_weights() {
    let (mut settings, requests) = serve(hub);
    settings.token = Some("secret".to_owned());
    let model = locate("owner/model", "main", &settings).unwrap();
    assert_eq!(model.origin, Origin::Hub);
    assert_eq!(model.shapes.unwrap().layers, 2);
    let stored = model.stored.unwrap();
    assert_eq!(
        (stored.files, stored.tensors, stored.elements, stored.bytes),
        (2, 4000, 40_000, 80_000)
    );
    let requests = requests.lock().unwrap();
    let weights = requests
        .iter()
        .filter(|asked| asked.path.contains(".safetensors") && !asked.path.contains("index"));
    assert!(
        weights.clone().count() > 2,
        "a long header takes a second request"
    );
    assert!(weights.clone().all(|asked| asked.range.is_some()));
    assert!(
        requests
            .iter()
            .all(|asked| asked.token.as_deref() == Some("Bearer secret"))
    );
}

#[test]
fn a_token_stays_on_its_host() {
    let (other, elsewhere) = serve(|_, stream| reply(stream, "200 OK", "", CONFIG.as_bytes()));
    // Another name of the same address is another host.
    let target = other.endpoint.replace("127.0.0.1", "localhost");
    let (mut settings, _) = serve(move |asked, stream| {
        if asked.path.ends_with("/config.json") {
            reply(
                stream,
                "302 Found",
                &format!("Location: {target}/config\r\n"),
                b"",
            );
        } else {
            reply(
                stream,
                "404 Not Found",
                "X-Error-Code: EntryNotFound\r\n",
                b"",
            );
        }
    });
    settings.token = Some("secret".to_owned());
    let model = locate("owner/model", "main", &settings).unwrap();
    assert!(model.shapes.is_ok() && model.stored.is_none());
    let elsewhere = elsewhere.lock().unwrap();
    assert_eq!(elsewhere.len(), 1);
    assert_eq!(elsewhere[0].token, None);
}

#[test]
fn errors_of_the_hub_name_the_reason() {
    let (settings, _) = serve(hub);
    let error = |name: &str| locate(name, "main", &settings).unwrap_err();
    assert!(matches!(
        error("owner/gated"),
        LocateError::Hub(HubError::Gated(_))
    ));
    let missing = error("owner/modle").to_string();
    assert!(
        missing.ends_with("; did you mean owner/model?"),
        "{missing}"
    );
    let empty = error("owner/images").to_string();
    assert!(empty.ends_with("it has model_index.json"), "{empty}");
    assert!(matches!(
        error("a/b/c"),
        LocateError::Hub(HubError::Name(_))
    ));
    assert!(matches!(
        error("owner/../x"),
        LocateError::Hub(HubError::Name(_))
    ));
    assert!(matches!(error("./missing"), LocateError::NoSuchPath(_)));
    let mut offline = settings.clone();
    offline.offline = true;
    let error = locate("owner/model", "main", &offline).unwrap_err();
    assert!(
        matches!(error, LocateError::Hub(HubError::Offline(_))),
        "{error}"
    );
    let mut gone = settings.clone();
    gone.endpoint = "http://127.0.0.1:1".to_owned();
    let error = locate("owner/model", "main", &gone).unwrap_err();
    assert!(
        matches!(error, LocateError::Hub(HubError::Unreachable { .. })),
        "{error}"
    );
}

#[test]
fn a_slow_server_ends_in_time_and_an_endless_answer_is_cut() {
    let (mut slow, _) = serve(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n");
        for _ in 0..300 {
            let _ = stream.write_all(b" ");
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    slow.timeout = Duration::from_secs(1);
    let start = Instant::now();
    let error = locate("owner/model", "main", &slow).unwrap_err();
    assert!(
        matches!(error, LocateError::Hub(HubError::Unreachable { .. })),
        "{error}"
    );
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );

    let (endless, _) = serve(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
        let spaces = vec![b' '; 1 << 16];
        while stream.write_all(&spaces).is_ok() {}
    });
    let error = locate("owner/model", "main", &endless).unwrap_err();
    assert!(
        matches!(error, LocateError::Hub(HubError::TooLong { .. })),
        "{error}"
    );

    let (looping, _) = serve(|asked, stream| {
        reply(
            stream,
            "302 Found",
            &format!("Location: {}x\r\n", asked.path),
            b"",
        );
    });
    assert!(locate("owner/model", "main", &looping).is_err());
}

#[test]
fn a_server_that_ignores_ranges_is_cut_and_a_damaged_header_is_a_remark() {
    let (settings, _) = serve(
        |asked, stream| match asked.path.rsplit('/').next().unwrap() {
            "config.json" => reply(stream, "200 OK", "", CONFIG.as_bytes()),
            "model.safetensors" => {
                let mut file = weights(3);
                file.resize(64 << 20, 0);
                reply(stream, "200 OK", "", &file);
            }
            _ => reply(stream, "404 Not Found", "", b""),
        },
    );
    let model = locate("owner/model", "main", &settings).unwrap();
    assert_eq!(model.stored.unwrap().tensors, 3);

    let (damaged, _) = serve(
        |asked, stream| match asked.path.rsplit('/').next().unwrap() {
            "config.json" => reply(stream, "200 OK", "", CONFIG.as_bytes()),
            "model.safetensors" => reply(stream, "200 OK", "", &[255; 100]),
            _ => reply(stream, "404 Not Found", "", b""),
        },
    );
    let model = locate("owner/model", "main", &damaged).unwrap();
    assert!(model.stored.is_none());
    assert!(model.without_headers.unwrap().contains("damaged"));
}

#[test]
fn the_cache_is_used_without_requests() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("models--owner--model");
    let snapshot = model.join("snapshots/abc");
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(model.join("refs")).unwrap();
    std::fs::write(model.join("refs/main"), "abc").unwrap();
    std::fs::write(snapshot.join("config.json"), CONFIG).unwrap();
    std::fs::write(snapshot.join("model.safetensors"), weights(3)).unwrap();
    let settings = HubSettings {
        endpoint: "http://127.0.0.1:1".to_owned(),
        token: None,
        offline: true,
        cache: Some(folder.path().to_owned()),
        timeout: Duration::from_secs(1),
    };
    let model = locate("owner/model", "main", &settings).unwrap();
    assert_eq!(
        (model.origin, model.stored.unwrap().tensors),
        (Origin::Cache, 3)
    );
}

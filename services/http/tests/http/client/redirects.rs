//! Redirects, as a server sees them.

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::routing::any;
use pikake::http::Client;
use pikake::http::client::{Body, ErrorKind};

use super::{client, run, scripted, site};

fn to(status: u16, location: String) -> axum::routing::MethodRouter {
    let status = StatusCode::from_u16(status).unwrap();
    any(async move || (status, [(header::LOCATION, location.clone())], "elsewhere"))
}

async fn seen(method: Method, headers: HeaderMap, body: Bytes) -> String {
    let has = |name| if headers.contains_key(name) { "yes" } else { "no" };
    let (secret, cookie) = (has(header::AUTHORIZATION), has(header::COOKIE));
    format!("{method} {secret} {cookie} {:?}", String::from_utf8_lossy(&body))
}

#[test]
fn redirects_are_followed_to_their_end() {
    run(async || {
        let other = site(Router::new().route("/", any(seen))).await;
        let router = Router::new()
            .route("/", any(seen))
            .route("/301", to(301, "/".into()))
            .route("/303", to(303, "/".into()))
            .route("/307", to(307, "/".into()))
            .route("/twice", to(302, "/307".into()))
            .route("/away", to(308, format!("{}/", other.url)))
            .route("/bad", to(302, "gopher://x/".into()))
            .route("/loop", to(302, "/loop".into()));
        let (site, client) = (site(router).await, client());
        let post = async |path: &str| {
            let request = client.post(format!("{}{path}", site.url)).body("body");
            let request = request.bearer_auth("secret").header("cookie", "secret");
            let response = request.send().await.unwrap();
            (response.url().to_string(), response.text().await.unwrap())
        };
        let here = format!("{}/", site.url);
        let away = format!("{}/", other.url);
        for (path, url, text) in [
            ("/301", &here, "GET yes yes \"\""),
            ("/303", &here, "GET yes yes \"\""),
            ("/307", &here, "POST yes yes \"body\""),
            ("/twice", &here, "GET yes yes \"\""),
            ("/away", &away, "POST no no \"body\""),
        ] {
            assert_eq!(post(path).await, (url.clone(), text.into()), "{path}");
        }
        let get = async |client: &Client, path: &str| {
            client.get(format!("{}{path}", site.url)).send().await
        };
        let error = get(&client, "/bad").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Redirect);
        let error = get(&client, "/loop").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Redirect);
        assert!(error.to_string().ends_with("there are more than 10"), "{error}");
        let few = Client::builder().no_proxy().redirects(1).build().unwrap();
        assert_eq!(get(&few, "/301").await.unwrap().status(), StatusCode::OK);
        assert_eq!(get(&few, "/twice").await.unwrap_err().kind(), ErrorKind::Redirect);
        let none = Client::builder().no_proxy().redirects(0).build().unwrap();
        let response = get(&none, "/301").await.unwrap();
        assert_eq!(response.status(), StatusCode::MOVED_PERMANENTLY);
        assert_eq!(response.text().await.unwrap(), "elsewhere");
        // A stream cannot be sent twice.
        let stream = Body::from_stream(futures::stream::iter([Ok::<_, std::io::Error>("body")]));
        let request = client.post(format!("{}/307", site.url)).body(stream);
        assert_eq!(request.send().await.unwrap().status(), StatusCode::TEMPORARY_REDIRECT);
    });
}

#[test]
fn redirect_keeps_the_connection_if_its_body_is_short() {
    run(async || {
        let server = scripted(async |conn| {
            while let Some(request) = conn.request().await {
                let path = request.split(' ').nth(1).unwrap();
                let short =
                    "HTTP/1.1 302 Found\r\nlocation: /end\r\ncontent-length: 5\r\n\r\nshort";
                let endless =
                    "HTTP/1.1 302 Found\r\nlocation: /end\r\ncontent-length: 5000\r\n\r\nsome";
                match path {
                    "/short" => conn.send(short).await,
                    "/endless" => conn.send(endless).await,
                    _ => conn.answer("end").await,
                }
            }
        })
        .await;
        let client = client();
        for (path, connections) in [("/short", 1), ("/endless", 2)] {
            let request = client.get(format!("{}{path}", server.url)).send();
            assert_eq!(request.await.unwrap().text().await.unwrap(), "end");
            assert_eq!(server.accepted.get(), connections, "{path}");
        }
    });
}

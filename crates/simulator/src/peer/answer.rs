//! The bytes of an answer, in each manner.

use super::manner::Manner;
use crate::rng::Rng;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Pauses between the bytes of a slow answer: long enough to come one by one, far below anybody's patience.
const BYTE_PAUSE: Duration = Duration::from_millis(1);
static FLOOD_PIECE: [u8; 64 * 1_024] = [b'x'; 64 * 1_024];
/// How many pieces a flood has: four mebibytes.
static FLOOD_PIECES: usize = 64;
/// A date that is past, because what is answered does not depend on time.
const PAST: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const GARBAGE_MAX: u64 = 512;

/// What an honest answer would be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    /// The charge was applied.
    Taken,
    /// It was known.
    Known,
    /// Nothing was done.
    Nothing,
    /// The call was refused.
    Refused(u16),
}

/// What becomes of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum After {
    NextCall,
    Close,
}

/// Answers in this manner.
pub(super) async fn write(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    manner: Manner,
    said: Said,
    mut rng: Rng,
) -> io::Result<After> {
    let (status, body) = match said {
        Said::Taken => (200, r#"{"status":"finalized"}"#),
        Said::Known if manner == Manner::Honest => (409, r#"{"status":"already_finalized"}"#),
        Said::Known => (200, r#"{"status":"finalized"}"#),
        Said::Nothing => (500, r#"{"error":"broken"}"#),
        Said::Refused(status) => (status, r#"{"error":"refused"}"#),
    };
    let honest = whole(status, "", body);
    match manner {
        Manner::Honest | Manner::Takes200 => all(stream, honest.as_bytes()).await,
        Manner::TakesSlowly => {
            for byte in honest.into_bytes() {
                stream.write_all(&[byte]).await?;
                tokio::time::sleep(BYTE_PAUSE).await;
            }
            Ok(After::NextCall)
        }
        Manner::TakesInChunks => {
            let chunks = format!(
                "HTTP/1.1 {status} \r\ntransfer-encoding: chunked\r\n\r\n1\r\n{{\r\n{:x}\r\n{}\r\n0\r\n\r\n",
                body.len() - 1,
                body.get(1..).unwrap_or_default()
            );
            all(stream, chunks.as_bytes()).await
        }
        Manner::TakesInforming => all(stream, format!("HTTP/1.1 103 Early Hints\r\n\r\n{honest}").as_bytes()).await,
        Manner::TakesAndFails => all(stream, whole(500, "", r#"{"error":"broken"}"#).as_bytes()).await,
        Manner::TakesAndCutsHead => {
            let cut = rng.between(1, 40);
            part(stream, honest.as_bytes(), cut).await
        }
        Manner::TakesAndCutsBody => part(stream, honest.as_bytes(), honest.len() as u64 - 5).await,
        Manner::TakesAndGarbles | Manner::Garbles => {
            let garbage: Vec<u8> = (0..rng.between(1, GARBAGE_MAX)).map(|_| rng.next() as u8).collect();
            part(stream, &garbage, GARBAGE_MAX).await
        }
        Manner::TakesAndFloods => flood(stream, status).await,
        Manner::FailsAndFloods => flood(stream, 500).await,
        Manner::TakesAndHangs | Manner::Hangs => until_gone(stream).await,
        Manner::TakesAndDrops | Manner::Drops => Ok(After::Close),
        Manner::Fails => plain(stream, &[500, 502, 504, 408, 425], "", &mut rng).await,
        Manner::Unavailable => plain(stream, &[503], "", &mut rng).await,
        Manner::Redirects => plain(stream, &[301, 302, 303, 307, 308], "location: /elsewhere\r\n", &mut rng).await,
        Manner::TooManySeconds => too_many(stream, "1").await,
        Manner::TooManyDate => too_many(stream, PAST).await,
        Manner::TooManyNonsense => too_many(stream, "after the rain").await,
        Manner::FloodsHead => {
            stream.write_all(b"HTTP/1.1 200 OK\r\n").await?;
            for number in 0..FLOOD_PIECES {
                stream.write_all(format!("x-{number}: ").as_bytes()).await?;
                stream.write_all(&FLOOD_PIECE).await?;
                stream.write_all(b"\r\n").await?;
            }
            Ok(After::Close)
        }
    }
}

/// One of these statuses.
async fn plain(
    stream: &mut (impl AsyncWrite + Unpin),
    statuses: &[u16],
    headers: &str,
    rng: &mut Rng,
) -> io::Result<After> {
    let status = rng.pick(statuses).unwrap_or(500);
    all(stream, whole(status, headers, r#"{"error":"later"}"#).as_bytes()).await
}

async fn too_many(stream: &mut (impl AsyncWrite + Unpin), when: &str) -> io::Result<After> {
    all(stream, whole(429, &format!("retry-after: {when}\r\n"), r#"{"error":"later"}"#).as_bytes()).await
}

fn whole(status: u16, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status} \r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n{body}")
}

async fn all(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<After> {
    stream.write_all(bytes).await.map(|()| After::NextCall)
}

/// The first so many bytes, and the end.
async fn part(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8], most: u64) -> io::Result<After> {
    let most = usize::try_from(most).unwrap_or(usize::MAX).min(bytes.len());
    stream.write_all(bytes.get(..most).unwrap_or(bytes)).await.map(|()| After::Close)
}

async fn flood(stream: &mut (impl AsyncWrite + Unpin), status: u16) -> io::Result<After> {
    let length = FLOOD_PIECE.len() * FLOOD_PIECES;
    stream.write_all(format!("HTTP/1.1 {status} \r\ncontent-length: {length}\r\n\r\n").as_bytes()).await?;
    for _ in 0..FLOOD_PIECES {
        stream.write_all(&FLOOD_PIECE).await?;
    }
    Ok(After::NextCall)
}

/// Waits until the caller has hung up.
async fn until_gone(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<After> {
    let mut unread = [0; 256];
    while stream.read(&mut unread).await? > 0 {}
    Ok(After::Close)
}

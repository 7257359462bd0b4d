// Programs with the Go hook, for tests/integration/test_hook_go.py: `hooked PROGRAM`. Each prints {"port": N}, or what it saw.
package main

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"stallscope"
)

func main() {
	map[string]func(){"serve": serve, "burn": burn, "watch": watch, "leak": leak, "buffer": buffer}[os.Args[1]]()
}

func say(record map[string]any) {
	text, _ := json.Marshal(record)
	fmt.Println(string(text))
}

func seconds(r *http.Request) time.Duration {
	n, _ := strconv.ParseFloat(r.URL.Query().Get("s"), 64)
	return time.Duration(n * float64(time.Second))
}

func listen(handler http.Handler) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM) // before anybody knows that it is there
	say(map[string]any{"port": listener.Addr().(*net.TCPAddr).Port})
	server := &http.Server{Handler: handler}
	go func() {
		<-ended
		_ = server.Close()
	}()
	_ = server.Serve(listener)
	stallscope.Stop()
}

// whole answers with a length and flushes: the client has everything.
func whole(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = io.WriteString(w, text)
	w.(http.Flusher).Flush()
}

func serve() {
	mux := http.NewServeMux()
	mux.HandleFunc("/plain", func(w http.ResponseWriter, r *http.Request) { time.Sleep(seconds(r)); fmt.Fprint(w, "plain") })
	mux.HandleFunc("/flushed", func(w http.ResponseWriter, r *http.Request) { whole(w, "flushed") })
	mux.HandleFunc("/early", func(w http.ResponseWriter, r *http.Request) { whole(w, "early"); time.Sleep(seconds(r)) })
	mux.HandleFunc("/nothing", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusNoContent)
		_ = http.NewResponseController(w).Flush()
		time.Sleep(seconds(r))
	})
	mux.HandleFunc("/after", func(w http.ResponseWriter, r *http.Request) {
		wait := seconds(r)
		stallscope.After(r.Context(), func() { time.Sleep(wait) })
		fmt.Fprint(w, "after")
	})
	mux.HandleFunc("/within", func(w http.ResponseWriter, r *http.Request) {
		done := stallscope.AfterResponse(r.Context())
		time.Sleep(seconds(r)) // before its response
		done()
		fmt.Fprint(w, "within")
	})
	mux.HandleFunc("/stream", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for end := time.Now().Add(seconds(r)); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			fmt.Fprint(w, "data: x\n\n")
			w.(http.Flusher).Flush()
		}
	})
	mux.HandleFunc("/slowly", func(w http.ResponseWriter, r *http.Request) { // with a length, and the last byte late
		w.Header().Set("Content-Length", "6")
		fmt.Fprint(w, "slowl")
		w.(http.Flusher).Flush()
		time.Sleep(seconds(r))
		fmt.Fprint(w, "y")
	})
	mux.HandleFunc("/hijack", func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		_ = rw.Flush()
		time.Sleep(seconds(r))
	})
	mux.HandleFunc("/panics", func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) })
	mux.HandleFunc("/file", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, os.Args[0]) })
	mux.HandleFunc("/face", func(w http.ResponseWriter, r *http.Request) {
		_, flusher := w.(http.Flusher)
		_, hijacker := w.(http.Hijacker)
		_, reader := w.(io.ReaderFrom)
		_, pusher := w.(http.Pusher)
		deadline := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute))
		fmt.Fprint(w, flusher, hijacker, reader, pusher, deadline == nil, r.Context().Value(http.ServerContextKey) != nil)
	})
	listen(stallscope.Middleware(stallscope.Middleware(mux))) // the inner one counts nothing twice
}

// burn computes, ?s= seconds of CPU in ?n= goroutines; /early acknowledges before it, as a push handler does that is in a hurry.
func burn() {
	listen(stallscope.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/early" {
			whole(w, "done")
		}
		count, _ := strconv.Atoi(r.URL.Query().Get("n"))
		var all sync.WaitGroup
		for n := 0; n < max(1, count); n++ {
			all.Add(1)
			go func() {
				defer all.Done()
				compute(seconds(r))
			}()
		}
		all.Wait()
		if r.URL.Path != "/early" {
			fmt.Fprint(w, "done")
		}
	})))
}

// compute is not tied to a thread: many of these make the scheduler's queue long.
func compute(cpu time.Duration) {
	for rounds := int(cpu / calibrated); rounds > 0; rounds-- {
		work()
	}
}

var calibrated = func() time.Duration {
	best := time.Duration(1 << 62)
	for n := 0; n < 5; n++ {
		began := time.Now()
		work()
		best = min(best, time.Since(began))
	}
	return best
}()

func work() {
	total := 0
	for n := 0; n < 1_000_000; n++ {
		total += n ^ total
	}
	sink.Store(int64(total))
}

var sink atomic.Int64

// ---- what is watched

type stat struct{ acquired int32 }

func (s *stat) MaxConns() int32                { return 4 }
func (s *stat) AcquiredConns() int32           { return s.acquired }
func (s *stat) AcquireCount() int64            { return 1500 }
func (s *stat) EmptyAcquireCount() int64       { return 30 }
func (s *stat) AcquireDuration() time.Duration { return 2500 * time.Millisecond }

type pgx struct{}

func (pgx) Stat() *stat { return &stat{3} }

type nothing struct{}

func (nothing) Connect(context.Context) (driver.Conn, error) { return conn{}, nil }
func (nothing) Driver() driver.Driver                        { return nil }

type conn struct{ driver.Conn }

func (conn) Close() error { return nil }

func watch() {
	defer stallscope.Stop()
	db := sql.OpenDB(nothing{})
	db.SetMaxOpenConns(2)
	_, _ = db.Conn(context.Background())
	var none *sql.DB
	queue := make(chan string, 8)
	queue <- "entry"
	queue <- "entry"
	stallscope.WatchDB("sql", db)
	stallscope.WatchDB("none", none)
	stallscope.WatchPool("pgx", pgx{})
	stallscope.WatchPool("none", nil)
	stallscope.WatchPool("no pool", "text")
	stallscope.WatchPool("no stat", time.Now())
	stallscope.WatchPool("panics", func() stallscope.PoolStats { panic("on purpose") })
	stallscope.WatchPool("own", func() stallscope.PoolStats {
		return stallscope.PoolStats{Size: 3, CheckedOut: 3, Waiting: 7, Acquires: math.MaxInt64}
	})
	stallscope.WatchQueue("channel", queue)
	stallscope.WatchQueue("channel", queue)
	stallscope.WatchQueue("nobody", 17)
	stallscope.WatchQueue("panics", func() stallscope.QueueStats { panic(errors.New("on purpose")) })
	stallscope.WatchQueue(strings.Repeat("é", 100), func() stallscope.QueueStats {
		return stallscope.QueueStats{Entries: -1, MostEntries: math.MaxInt, Oldest: 3 * time.Second, Dropped: 5}
	})
	if len(os.Args) > 2 {
		stallscope.WatchLogs()
	}
	time.Sleep(time.Second)
}

// leak says how many goroutines are left.
func leak() {
	before := runtime.NumGoroutine()
	handler := stallscope.Middleware(http.NotFoundHandler())
	stallscope.Start()
	time.Sleep(300 * time.Millisecond)
	during := runtime.NumGoroutine()
	server := &http.Request{Method: "GET", ProtoMajor: 1}
	for n := 0; n < 2000; n++ {
		handler.ServeHTTP(discard{}, server)
	}
	stallscope.Stop()
	stallscope.Stop()
	stallscope.Start()
	handler.ServeHTTP(discard{}, server)
	stallscope.AfterResponse(nil)() //nolint
	// One that has said that it ends is counted until the scheduler has let it.
	for n := 0; n < 500 && runtime.NumGoroutine() > before; n++ {
		time.Sleep(10 * time.Millisecond)
	}
	say(map[string]any{"before": before, "during": during, "after": runtime.NumGoroutine()})
}

type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) WriteHeader(int)             {}

// buffer writes 100 entries of 10 bytes through a buffer that keeps what is told on its standard input.
func buffer() {
	b := stallscope.WatchBuffer("zap")
	out := b.Out(io.Discard)
	in := b.In(io.Discard)
	for n := 0; n < 100; n++ {
		_, _ = io.WriteString(in, "123456789\n")
	}
	_, _ = out.Write(make([]byte, 400))
	time.Sleep(600 * time.Millisecond)
	stallscope.Stop()
}

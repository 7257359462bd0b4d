package main

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"stallscope"
)

func plain(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }

func served(b *testing.B, handler http.Handler) {
	request := httptest.NewRequest("GET", "/", nil)
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; n++ {
		handler.ServeHTTP(discard{}, request)
	}
}

func BenchmarkPlain(b *testing.B)  { served(b, http.HandlerFunc(plain)) }
func BenchmarkHooked(b *testing.B) { served(b, stallscope.Middleware(http.HandlerFunc(plain))) }

func parallel(b *testing.B, handler http.Handler) {
	request := httptest.NewRequest("GET", "/", nil)
	b.ResetTimer()
	b.RunParallel(func(all *testing.PB) {
		for all.Next() {
			handler.ServeHTTP(discard{}, request)
		}
	})
}

func BenchmarkParallelHooked(b *testing.B) {
	parallel(b, stallscope.Middleware(http.HandlerFunc(plain)))
}

func TestMiddlewareOfNothing(t *testing.T) {
	if stallscope.Middleware(nil) == nil {
		t.Fatal("no handler")
	}
}

// The one program of the tiny guest: the proxy that its user-data asks for, the power button, and (agent.go) a guest agent.
//
// It is no cloud-init. It looks in the NoCloud seed's user-data for Squid's words and for some of its own, wherever they
// stand in the text, also in comments:
//
//	http_port [ADDRESS:]PORT       where the proxy listens (3128)
//	guest-auth: USER:PASSWORD      what it asks for, by Proxy-Authorization
//	guest-agent: off               there is none
//	guest-proxy: off               there is none
//	guest-proxy-after: 20s         it comes later
//	guest-off-after: 30s           powers itself off
package main

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

type words []byte

func (seed words) find(pattern string) string {
	if m := regexp.MustCompile(pattern).FindSubmatch(seed); m != nil {
		return string(m[1])
	}
	return ""
}

func (seed words) after(name string) time.Duration {
	d, _ := time.ParseDuration(seed.find(name + `: *([0-9a-z]+)`))
	return d
}

func main() {
	text, _ := os.ReadFile("/seed/user-data")
	seed := words(text)
	if seed.find(`guest-agent: *(\S+)`) != "off" {
		go agent()
	}
	buttons, _ := filepath.Glob("/dev/input/event*")
	for _, b := range buttons {
		go button(b)
	}
	if d := seed.after("guest-off-after"); d > 0 {
		time.AfterFunc(d, func() { off(false) })
	}
	if seed.find(`guest-proxy: *(\S+)`) == "off" {
		select {}
	}
	time.Sleep(seed.after("guest-proxy-after"))
	addr := seed.find(`http_port +(\S*\d)\b`)
	if addr == "" {
		addr = "3128"
	}
	if !strings.Contains(addr, ":") {
		addr = ":" + addr
	}
	auth := ""
	if pair := seed.find(`guest-auth: *(\S+:\S+)`); pair != "" {
		auth = "Basic " + base64.StdEncoding.EncodeToString([]byte(pair))
	}
	fmt.Println("guest: proxy on", addr)
	for {
		fmt.Println("guest:", http.ListenAndServe(addr, proxy(auth)))
		time.Sleep(time.Second)
	}
}

func proxy(auth string) http.Handler {
	direct := &http.Transport{DisableKeepAlives: true, ResponseHeaderTimeout: 30 * time.Second}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if auth != "" && r.Header.Get("Proxy-Authorization") != auth {
			w.Header().Set("Proxy-Authenticate", `Basic realm="guest"`)
			w.WriteHeader(http.StatusProxyAuthRequired)
			return
		}
		r.Header.Del("Proxy-Authorization")
		if r.Method == http.MethodConnect {
			tunnel(w, r)
			return
		}
		if !r.URL.IsAbs() {
			http.Error(w, "guest: not a proxy request", http.StatusBadRequest)
			return
		}
		res, err := direct.RoundTrip(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer res.Body.Close()
		for k, v := range res.Header {
			w.Header()[k] = v
		}
		w.WriteHeader(res.StatusCode)
		io.Copy(w, res.Body)
	})
}

func tunnel(w http.ResponseWriter, r *http.Request) {
	up, err := net.DialTimeout("tcp", r.Host, 30*time.Second)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer up.Close()
	down, buf, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer down.Close()
	io.WriteString(down, "HTTP/1.1 200 Connection established\r\n\r\n")
	go func() {
		io.Copy(up, buf)
		up.(*net.TCPConn).CloseWrite()
	}()
	io.Copy(down, up)
	down.(*net.TCPConn).CloseWrite()
}

func off(again bool) {
	syscall.Sync()
	how := syscall.LINUX_REBOOT_CMD_POWER_OFF
	if again {
		how = syscall.LINUX_REBOOT_CMD_RESTART
	}
	syscall.Reboot(how)
}

// button waits for the ACPI power button.
func button(path string) {
	f, err := os.Open(path)
	if err != nil {
		return
	}
	var e struct {
		Sec, Usec  int64
		Kind, Code uint16
		Value      int32
	}
	for binary.Read(f, binary.LittleEndian, &e) == nil {
		if e.Kind == 1 && e.Code == 116 && e.Value == 1 { // EV_KEY, KEY_POWER
			fmt.Println("guest: power button")
			off(false)
		}
	}
}
